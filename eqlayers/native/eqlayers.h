/* Potentials of eqlayers without Python: opens files that `eqlayers deploy` wrote, and evaluates them.

   Copy this file. In one C file of a program, define EQLAYERS_IMPLEMENTATION before it is included, first of all headers;
   link with -ldl -lm -lpthread.
   A potential may be used by several threads at once, each with a workspace of its own; one call may run on several, too.

   A file is code, and to open one runs it: open only files of people that you trust. Files are compared with their
   checksum, the version of this header, and the instructions of the processor before they are loaded. */
#ifndef EQLAYERS_H
#define EQLAYERS_H
#if defined(EQLAYERS_IMPLEMENTATION) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L /* mkstemp */
#endif
#include <stdint.h>

#define EQLAYERS_VERSION 3

enum eqlayers_status {
  EQLAYERS_DONE = 0,
  EQLAYERS_NO_MEMORY = 1,
  EQLAYERS_NO_ATOM = 2,       /* an end of an edge is no atom */
  EQLAYERS_NO_SPECIES = 3,    /* the potential does not know a species */
  EQLAYERS_NO_STAGE = 4,      /* no such stage, not in order, of other numbers; or more local atoms than atoms */
  EQLAYERS_NO_FILE = 5,       /* the file cannot be read */
  EQLAYERS_DAMAGED = 6,       /* the file is no potential, or was changed */
  EQLAYERS_OTHER_VERSION = 7, /* the file is of another version of this header */
  EQLAYERS_PROCESSOR = 8,     /* the file needs instructions that this processor does not have */
  EQLAYERS_NOT_LOADED = 9,    /* the file was not compiled for this system */
  EQLAYERS_NEGATIVE = 10,     /* a number of atoms or edges is negative, or beyond 2^31 */
  EQLAYERS_NO_ROW = 11,       /* the network computed the index of a row that its table does not have */
  EQLAYERS_NO_WORKSPACE = 12  /* the workspace is of another potential, or NULL */
};

#ifdef __cplusplus
extern "C" {
#endif

typedef struct eqlayers_potential eqlayers_potential;

/* Opens a file. On failure *potential is NULL. */
int eqlayers_open(const char *path, eqlayers_potential **potential);
void eqlayers_close(eqlayers_potential *potential);
/* A sentence for each status. */
const char *eqlayers_sentence(int status);

/* Angstrom. Edges must have at most this length; longer ones add nothing. */
double eqlayers_cutoff(const eqlayers_potential *potential);
/* 8 if vectors and slopes are double, 4 if they are float. */
int eqlayers_bytes(const eqlayers_potential *potential);
/* The number of species, and their atomic numbers in ascending order. */
int eqlayers_species(const eqlayers_potential *potential, const int64_t **numbers);
/* A workspace holds memory, which grows as structures need it, and is of one potential, which must be closed after it is
   freed; calls with another potential return EQLAYERS_NO_WORKSPACE. Calls of one workspace must follow one another. On
   failure *workspace is NULL. threads: what a call runs on; its results do not depend on them. */
typedef struct eqlayers_workspace eqlayers_workspace;
int eqlayers_workspace_new(const eqlayers_potential *potential, int threads, eqlayers_workspace **workspace);
void eqlayers_workspace_free(eqlayers_workspace *workspace);
/* Bytes that a workspace has. */
int64_t eqlayers_workspace_bytes(const eqlayers_workspace *workspace);

/* Energies of atoms, and the derivatives of the sum of their products with factors by the vectors of edges.

   atoms, edges  numbers
   z             [atoms] atomic numbers
   vectors       [edges, 3] Angstrom, from the sender to the receiver; float or double, see eqlayers_bytes
   ends          [2, edges] the senders of all edges, then the receivers, counted from 0; each pair in both directions
   factors       [atoms] of the energies of atoms, float or double; NULL for ones
   energies      [atoms] eV
   slopes        [edges, 3] eV/Angstrom; float or double */
int eqlayers_evaluate(const eqlayers_potential *potential, eqlayers_workspace *workspace, int64_t atoms, int64_t edges,
                      const int64_t *z, const void *vectors, const int64_t *ends, const void *factors, double *energies,
                      void *slopes);

/* Stages, for a structure that several processes share. Each process has atoms of its own, the first `local` ones, and
   after them ghosts, copies of atoms of other processes or periodic images: `atoms` in all. Ghosts are all senders of
   edges to its own atoms, and edges to its own atoms are all that it passes.

   Stages run in their order with the same arguments. After each one, rows of atoms are exchanged between processes. The
   energies [local] and the slopes are complete after the last. Factors are of ghosts too. */
enum eqlayers_how {
  EQLAYERS_NOTHING = 0, /* the last stage */
  EQLAYERS_COPY = 1,    /* each ghost's row becomes its owner's */
  EQLAYERS_ADD = 2      /* each ghost's row is added to its owner's */
};
/* The number of stages; 0 if the potential must have the whole structure, and eqlayers_evaluate alone can be used. */
int eqlayers_stages(const eqlayers_potential *potential);
/* What is exchanged after a stage, and how many numbers a row has. *gradients is 1 if the rows are gradients, which are
   linear in the factors, and 0 if they do not depend on them. Factors may be positions, which differ by a vector between
   an atom and its periodic image: rows of gradients for factors that are larger by d are larger by d times the rows for
   factors of one. A network that writes its own reverse pass may break this: rows for factors of -2 for all atoms must
   be -2 times the rows for ones. */
int eqlayers_exchange(const eqlayers_potential *potential, int stage, int64_t *columns, int *gradients);
/* Runs a stage. *rows is set to the rows [atoms, columns] that are exchanged, float or double, see eqlayers_bytes, or to
   NULL after the last stage. */
int eqlayers_stage(const eqlayers_potential *potential, eqlayers_workspace *workspace, int stage, int64_t local,
                   int64_t atoms, int64_t edges, const int64_t *z, const void *vectors, const int64_t *ends,
                   const void *factors, double *energies, void *slopes, void **rows);

/* Sums of slopes: forces [atoms, 3] in eV/Angstrom, and virials [atoms, 9] in eV, rows of 3 by 3, whose sum is the
   virial of the structure, the negative derivative of its energy by strain. Half of the virial of an edge is of each
   end. Either may be NULL. */
void eqlayers_sums(const eqlayers_potential *potential, int64_t atoms, int64_t edges, const void *vectors,
                   const int64_t *ends, const void *slopes, double *forces, double *virials);

#ifdef __cplusplus
}
#endif
#endif

#ifdef EQLAYERS_IMPLEMENTATION
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The end of a file. Before it lie the library, and from the next multiple of 64 bytes the constants. */
typedef struct {
  char magic[8];
  uint32_t version, bytes, instructions, species_count;
  int64_t library_size, constants_start, constants_size, unused_too;
  double cutoff;
  int64_t species[120];
  uint32_t unused, checksum; /* CRC-32 of all bytes before it */
} eqlayers_footer;

struct eqlayers_workspace {
  const eqlayers_potential *potential;
  uint64_t number; /* of the potential: another one may be opened at the same address */
  void *memory;
};

struct eqlayers_potential {
  eqlayers_footer facts;
  uint64_t number;
  void *library;
  char *memory, *constants;
  int64_t (*stages)(void);
  int64_t (*exchange)(int64_t, int64_t *, int *);
  void *(*make)(int64_t);
  int64_t (*fits)(int64_t, int64_t);
  void (*drop)(void *);
  int64_t (*count)(const void *);
  int64_t (*run)(void *, const char *, int64_t, int64_t, int64_t, int64_t, int64_t, const int64_t *,
                 const void *, const int64_t *, const void *, double *, void *, void **);
  uint8_t known[120];
};

#define EQLAYERS_MOST ((INT64_C(1) << 31) - 1)

static uint32_t eqlayers_checksum(const uint8_t *data, int64_t size) {
  uint32_t table[256], sum = 0xFFFFFFFFu;
  for (uint32_t n = 0; n < 256; n++) {
    uint32_t value = n;
    for (int bit = 0; bit < 8; bit++) value = value & 1 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
    table[n] = value;
  }
  for (int64_t i = 0; i < size; i++) sum = table[(sum ^ data[i]) & 255] ^ (sum >> 8);
  return ~sum;
}

static int eqlayers_runs_here(uint32_t instructions) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (instructions & ~3u) return 0;
  if ((instructions & 1) && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return 0;
  if ((instructions & 2) && !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))) return 0;
#endif
  (void)instructions;
  return 1;
}

static int eqlayers_read(const char *path, uint8_t **data, int64_t *size) {
  FILE *const file = fopen(path, "rb");
  if (file == NULL) return EQLAYERS_NO_FILE;
  int status = EQLAYERS_NO_FILE;
  *data = NULL;
  if (fseek(file, 0, SEEK_END) == 0 && (*size = ftell(file)) >= 0 && *size < INT64_MAX &&
      fseek(file, 0, SEEK_SET) == 0) { /* folders may have the largest size */
    *data = (uint8_t *)malloc(*size + 1);
    status = *data == NULL ? EQLAYERS_NO_MEMORY : fread(*data, 1, *size, file) == (size_t)*size ? 0 : EQLAYERS_NO_FILE;
  }
  fclose(file);
  if (status) free(*data);
  return status;
}

/* The library must be of this processor, and whole: the loader would read the sections of a file that was cut. */
static int eqlayers_check_library(const uint8_t *data, int64_t size) {
  uint16_t machine, bytes, sections;
  uint64_t start;
  if (size < 64 || memcmp(data, "\177ELF\2\1", 6)) return EQLAYERS_DAMAGED;
  memcpy(&machine, data + 18, 2);
  memcpy(&start, data + 40, 8);
  memcpy(&bytes, data + 58, 2);
  memcpy(&sections, data + 60, 2);
  if (start > (uint64_t)size || (uint64_t)size - start < (uint64_t)bytes * sections) return EQLAYERS_DAMAGED;
#if defined(__x86_64__)
  if (machine != 62) return EQLAYERS_PROCESSOR;
#elif defined(__aarch64__)
  if (machine != 183) return EQLAYERS_PROCESSOR;
#endif
  return EQLAYERS_DONE;
}

static int eqlayers_check(const uint8_t *data, int64_t size, eqlayers_footer *facts) {
  if (size < (int64_t)sizeof *facts) return EQLAYERS_DAMAGED;
  memcpy(facts, data + size - sizeof *facts, sizeof *facts);
  if (memcmp(facts->magic, "eqlayers", 8)) return EQLAYERS_DAMAGED;
  if (eqlayers_checksum(data, size - 4) != facts->checksum) return EQLAYERS_DAMAGED;
  if (facts->version != EQLAYERS_VERSION) return EQLAYERS_OTHER_VERSION;
  const int64_t end = size - (int64_t)sizeof *facts;
  if (facts->library_size > facts->constants_start || facts->constants_start > end ||
      facts->constants_size != end - facts->constants_start || !(facts->cutoff > 0 && facts->cutoff < 1e9) ||
      facts->species_count < 1 || facts->species_count > 120) return EQLAYERS_DAMAGED;
  for (uint32_t n = 0; n < facts->species_count; n++)
    if (facts->species[n] < (n ? facts->species[n - 1] + 1 : 0) || facts->species[n] >= 120) return EQLAYERS_DAMAGED;
  const int status = eqlayers_check_library(data, facts->library_size);
  if (status) return status;
  return eqlayers_runs_here(facts->instructions) ? EQLAYERS_DONE : EQLAYERS_PROCESSOR;
}

/* Loads a copy that no one else can change. Under the name of the file, an older library might be loaded already. */
static void *eqlayers_load(const uint8_t *data, int64_t size) {
  const char *const folder = getenv("TMPDIR");
  char name[4096];
  if (snprintf(name, sizeof name, "%s/eqlayers-XXXXXX", folder != NULL && *folder ? folder : "/tmp") >= (int)sizeof name)
    return NULL;
  const int file = mkstemp(name);
  if (file < 0) return NULL;
  int64_t written = 0;
  while (written < size) {
    const ssize_t part = write(file, data + written, size - written);
    if (part <= 0) break;
    written += part;
  }
  close(file);
  void *const library = written == size ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
  unlink(name);
  return library;
}

int eqlayers_open(const char *path, eqlayers_potential **potential) {
  uint8_t *data;
  int64_t size;
  *potential = NULL;
  int status = eqlayers_read(path, &data, &size);
  if (status) return status;
  eqlayers_potential *const made = (eqlayers_potential *)calloc(1, sizeof *made);
  status = made == NULL ? EQLAYERS_NO_MEMORY : eqlayers_check(data, size, &made->facts);
  if (!status) {
    made->memory = (char *)malloc(made->facts.constants_size + 64);
    made->library = eqlayers_load(data, made->facts.library_size);
    status = made->memory == NULL ? EQLAYERS_NO_MEMORY : made->library == NULL ? EQLAYERS_NOT_LOADED : EQLAYERS_DONE;
  }
  if (!status) {
    *(void **)&made->stages = dlsym(made->library, "program_stages");
    *(void **)&made->exchange = dlsym(made->library, "program_exchange");
    *(void **)&made->make = dlsym(made->library, "program_workspace");
    *(void **)&made->fits = dlsym(made->library, "program_fits");
    *(void **)&made->drop = dlsym(made->library, "program_free");
    *(void **)&made->count = dlsym(made->library, "program_bytes");
    *(void **)&made->run = dlsym(made->library, "program_run");
    if (made->stages == NULL || made->exchange == NULL || made->make == NULL || made->drop == NULL ||
        made->count == NULL || made->run == NULL || made->fits == NULL) status = EQLAYERS_NOT_LOADED;
    else if (!made->fits(made->facts.constants_size, made->facts.bytes)) status = EQLAYERS_DAMAGED;
  }
  if (status) {
    free(data);
    eqlayers_close(made);
    return status;
  }
  static uint64_t opened;
  made->number = __atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED);
  made->constants = made->memory + (-(uintptr_t)made->memory & 63);
  memcpy(made->constants, data + made->facts.constants_start, made->facts.constants_size);
  free(data);
  for (uint32_t n = 0; n < made->facts.species_count; n++) made->known[made->facts.species[n]] = 1;
  *potential = made;
  return EQLAYERS_DONE;
}

void eqlayers_close(eqlayers_potential *potential) {
  if (potential == NULL) return;
  if (potential->library != NULL) dlclose(potential->library);
  free(potential->memory);
  free(potential);
}

const char *eqlayers_sentence(int status) {
  static const char *const sentences[] = {
    "nothing is wrong",
    "there is not enough memory",
    "each end of an edge must be an atom, counted from 0",
    "each species must be one of the potential's",
    "stages must be the potential's in their order, with the same numbers, and at most as many local atoms as atoms",
    "the file must be readable",
    "the file must be a potential that eqlayers deploy wrote, and must not have been changed",
    "the file must be of the version of eqlayers.h: deploy the potential again",
    "the processor must have the instructions that the file was compiled for: deploy the potential for another target",
    "the file must have been compiled for this system, and TMPDIR must be a folder from which libraries can be loaded",
    "numbers of atoms and edges must be from 0 to 2^31 - 1",
    "an index of a row that the network computes must be in its table",
    "the workspace must be one that eqlayers_workspace_new made for this potential",
  };
  return status >= 0 && status < (int)(sizeof sentences / sizeof *sentences) ? sentences[status] : "unknown status";
}

double eqlayers_cutoff(const eqlayers_potential *potential) { return potential->facts.cutoff; }
int eqlayers_bytes(const eqlayers_potential *potential) { return (int)potential->facts.bytes; }

int eqlayers_species(const eqlayers_potential *potential, const int64_t **numbers) {
  *numbers = potential->facts.species;
  return (int)potential->facts.species_count;
}

int eqlayers_workspace_new(const eqlayers_potential *potential, int threads, eqlayers_workspace **workspace) {
  eqlayers_workspace *const made = (eqlayers_workspace *)calloc(1, sizeof *made);
  *workspace = NULL;
  if (made == NULL) return EQLAYERS_NO_MEMORY;
  made->potential = potential;
  made->number = potential->number;
  made->memory = potential->make(threads);
  if (made->memory == NULL) { free(made); return EQLAYERS_NO_MEMORY; }
  *workspace = made;
  return EQLAYERS_DONE;
}

void eqlayers_workspace_free(eqlayers_workspace *workspace) {
  if (workspace == NULL) return;
  workspace->potential->drop(workspace->memory);
  free(workspace);
}

int64_t eqlayers_workspace_bytes(const eqlayers_workspace *workspace) {
  return workspace == NULL ? 0 : workspace->potential->count(workspace->memory) + (int64_t)sizeof *workspace;
}

static int eqlayers_is_of(const eqlayers_workspace *workspace, const eqlayers_potential *potential) {
  return workspace != NULL && workspace->potential == potential && workspace->number == potential->number;
}

static int eqlayers_check_input(const eqlayers_potential *potential, int64_t local, int64_t atoms, int64_t edges,
                                const int64_t *z, const int64_t *ends) {
  if (atoms < 0 || edges < 0 || atoms > EQLAYERS_MOST || edges > EQLAYERS_MOST) return EQLAYERS_NEGATIVE;
  for (int64_t i = 0; i < atoms; i++)
    if (z[i] < 0 || z[i] >= 120 || !potential->known[z[i]]) return EQLAYERS_NO_SPECIES;
  for (int64_t e = 0; e < edges; e++)
    if (ends[e] < 0 || ends[e] >= atoms || ends[edges + e] < 0 || ends[edges + e] >= local) return EQLAYERS_NO_ATOM;
  return EQLAYERS_DONE;
}

int eqlayers_evaluate(const eqlayers_potential *potential, eqlayers_workspace *workspace, int64_t atoms, int64_t edges,
                      const int64_t *z, const void *vectors, const int64_t *ends, const void *factors, double *energies,
                      void *slopes) {
  if (!eqlayers_is_of(workspace, potential)) return EQLAYERS_NO_WORKSPACE;
  const int status = eqlayers_check_input(potential, atoms, atoms, edges, z, ends);
  if (status) return status;
  const int64_t last = potential->stages() ? potential->stages() - 1 : 0;
  return (int)potential->run(workspace->memory, potential->constants, 0, last, atoms, atoms, edges, z, vectors, ends,
                             factors, energies, slopes, NULL);
}

int eqlayers_stages(const eqlayers_potential *potential) { return (int)potential->stages(); }

int eqlayers_exchange(const eqlayers_potential *potential, int stage, int64_t *columns, int *gradients) {
  *columns = *gradients = 0;
  return (int)potential->exchange(stage, columns, gradients);
}

int eqlayers_stage(const eqlayers_potential *potential, eqlayers_workspace *workspace, int stage, int64_t local,
                   int64_t atoms, int64_t edges, const int64_t *z, const void *vectors, const int64_t *ends,
                   const void *factors, double *energies, void *slopes, void **rows) {
  *rows = NULL;
  if (!eqlayers_is_of(workspace, potential)) return EQLAYERS_NO_WORKSPACE;
  if (stage < 0 || stage >= potential->stages() || local < 0 || local > atoms) return EQLAYERS_NO_STAGE;
  const int status = stage == 0 ? eqlayers_check_input(potential, local, atoms, edges, z, ends) : EQLAYERS_DONE;
  if (status) return status;
  return (int)potential->run(workspace->memory, potential->constants, stage, stage, local, atoms, edges, z, vectors, ends,
                             factors, energies, slopes, rows);
}

#define EQLAYERS_SUMS(T)                                                                                  \
  for (int64_t e = 0; e < edges; e++) {                                                                   \
    const T *const slope = (const T *)slopes + 3 * e, *const vector = (const T *)vectors + 3 * e;         \
    const int64_t from = ends[e], to = ends[edges + e];                                                   \
    for (int a = 0; a < 3; a++) {                                                                         \
      if (forces != NULL) { forces[3 * from + a] += slope[a]; forces[3 * to + a] -= slope[a]; }           \
      if (virials != NULL) for (int b = 0; b < 3; b++) {                                                  \
        const double part = -0.25 * ((double)vector[a] * slope[b] + (double)vector[b] * slope[a]);        \
        virials[9 * from + 3 * a + b] += part; virials[9 * to + 3 * a + b] += part;                       \
      }                                                                                                   \
    }                                                                                                     \
  }

void eqlayers_sums(const eqlayers_potential *potential, int64_t atoms, int64_t edges, const void *vectors,
                   const int64_t *ends, const void *slopes, double *forces, double *virials) {
  if (forces != NULL) memset(forces, 0, 3 * atoms * sizeof *forces);
  if (virials != NULL) memset(virials, 0, 9 * atoms * sizeof *virials);
  if (potential->facts.bytes == 4) { EQLAYERS_SUMS(float) } else { EQLAYERS_SUMS(double) }
}
#endif
