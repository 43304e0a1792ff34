/* Runs a native program over structures, and damages its file and its inputs; see test_sanitizers.py.

   sanitized run PROGRAM STRUCTURES      prints energies and slopes as doubles: the same for all threads, by stages, and
                                         where 20 threads call at once, or it fails
   sanitized files PROGRAM COPY COUNT    opens damaged copies
   sanitized input PROGRAM STRUCTURES COUNT

   Arrays are as long as they must be, each in memory of its own, and NULL if they are empty. */
#define EQLAYERS_IMPLEMENTATION
#include "eqlayers.h"

#include <math.h>
#include <pthread.h>
#include <stddef.h>

typedef struct {
  int64_t local, atoms, edges;
  int64_t *z, *ends, *owners; /* owners: of ghosts, the local atom that each is a copy of; -1 for none */
  double *vectors;
  int known; /* whether there are results that others are compared with */
  double *energies;
  char *slopes;
} structure;

static const eqlayers_potential *potential;
static structure *structures;
static int64_t count;
static size_t width;
static int counts[16];

static void fail(const char *what, long long n) {
  fprintf(stderr, "sanitized: %s (%lld)\n", what, n);
  exit(1);
}

static void check(int status, const char *what) {
  if (status) fprintf(stderr, "sanitized: %s: %s\n", what, eqlayers_sentence(status)), exit(1);
}

static void *room(int64_t bytes) {
  void *const memory = bytes ? malloc(bytes) : NULL;
  if (bytes && memory == NULL) fail("there is no memory", bytes);
  return memory;
}

static void *load(FILE *file, int64_t number) {
  void *const values = room(8 * number);
  if (fread(values == NULL ? &width : values, 8, number, file) != (size_t)number) fail("structures are cut", number);
  return values;
}

/* Vectors in the type of the program. */
static void *vectors_of(const double *vectors, int64_t edges) {
  char *const made = room(3 * edges * width);
  for (int64_t n = 0; n < 3 * edges; n++)
    if (width == 8) ((double *)made)[n] = vectors[n];
    else ((float *)made)[n] = (float)vectors[n];
  return made;
}

static double number_at(const void *values, int64_t n) {
  return width == 8 ? ((const double *)values)[n] : ((const float *)values)[n];
}

static void set(void *values, int64_t n, double value) {
  if (width == 8) ((double *)values)[n] = value;
  else ((float *)values)[n] = (float)value;
}

/* Rows of ghosts become their owners', or are added to them; a row that is not read any more is not a number. */
static void exchange(const structure *s, int how, int64_t columns, void *rows) {
  for (int64_t ghost = s->local; ghost < s->atoms; ghost++)
    for (int64_t c = 0; c < columns; c++) {
      const int64_t owner = s->owners[ghost - s->local], from = ghost * columns + c, to = owner * columns + c;
      if (how == EQLAYERS_ADD && owner >= 0) set(rows, to, number_at(rows, to) + number_at(rows, from));
      set(rows, from, how == EQLAYERS_ADD || owner < 0 ? NAN : number_at(rows, to));
    }
}

static int run(const structure *s, eqlayers_workspace *w, const void *vectors, double *energies, void *slopes, int stages) {
  if (!stages) return eqlayers_evaluate(potential, w, s->atoms, s->edges, s->z, vectors, s->ends, NULL, energies, slopes);
  void *const factors = room(width * s->atoms); /* ones, as without factors */
  for (int64_t i = 0; i < s->atoms; i++) set(factors, i, 1.0);
  int status = EQLAYERS_DONE;
  for (int stage = 0; stage < eqlayers_stages(potential); stage++) {
    int64_t columns;
    int gradients;
    void *rows;
    const int how = eqlayers_exchange(potential, stage, &columns, &gradients);
    status = eqlayers_stage(potential, w, stage, s->local, s->atoms, s->edges, s->z, vectors, s->ends, factors, energies,
                            slopes, &rows);
    if (status) break;
    if (how != EQLAYERS_NOTHING) exchange(s, how, columns, rows);
    else if (rows != NULL) fail("rows after the last stage", stage);
  }
  free(factors);
  return status;
}

/* One structure again, whose results must have the same bits. */
static void run_again(structure *s, eqlayers_workspace *w, int stages, const char *what, int threads) {
  void *const vectors = vectors_of(s->vectors, s->edges), *const slopes = room(3 * s->edges * width);
  double *const energies = room(8 * s->local);
  check(run(s, w, vectors, energies, slopes, stages), what);
  if (!s->known) {
    s->known = 1;
    s->energies = energies;
    s->slopes = slopes;
    free(vectors);
    return;
  }
  if ((s->local && memcmp(energies, s->energies, 8 * s->local)) ||
      (s->edges && memcmp(slopes, s->slopes, 3 * s->edges * width))) fail(what, threads);
  free(vectors); free(slopes); free(energies);
}

static eqlayers_workspace *workspace(int threads) {
  eqlayers_workspace *made;
  check(eqlayers_workspace_new(potential, threads, &made), "a workspace");
  return made;
}

static void *turns(void *argument) {
  const int number = (int)(intptr_t)argument;
  eqlayers_workspace *const w = workspace(1 + number % 2);
  for (int64_t n = 0; n < count; n++) {
    structure *const s = &structures[(n + number) % count];
    run_again(s, w, s->local < s->atoms, "other results where threads call at once", number);
  }
  eqlayers_workspace_free(w);
  return NULL;
}

static void run_all(void) {
  const int threads[] = {1, 2, 3, 8, -1};
  const int stages = eqlayers_stages(potential);
  for (int64_t n = 0; n < count; n++) {
    eqlayers_workspace *const fresh = workspace(1);
    run_again(&structures[n], fresh, structures[n].local < structures[n].atoms, "first results", 1);
    eqlayers_workspace_free(fresh);
  }
  for (int k = 0; k < 5; k++) {
    eqlayers_workspace *const w = workspace(threads[k]);
    for (int64_t n = 0; n < count; n++) {
      structure *const s = &structures[n];
      run_again(s, w, s->local < s->atoms, "other results of other threads", threads[k]);
      if (stages && s->local == s->atoms && k % 2) run_again(s, w, 1, "other results by stages", threads[k]);
    }
    if (eqlayers_workspace_bytes(w) <= 0) fail("a workspace has no memory", k);
    eqlayers_workspace_free(w);
  }
  pthread_t at_once[20];
  for (int k = 0; k < 20; k++)
    if (pthread_create(&at_once[k], NULL, turns, (void *)(intptr_t)k)) fail("there is no thread", k);
  for (int k = 0; k < 20; k++) pthread_join(at_once[k], NULL);
  for (int64_t n = 0; n < count; n++) {
    const structure *const s = &structures[n];
    double *const forces = room(24 * s->atoms), *const virials = room(72 * s->atoms);
    void *const vectors = vectors_of(s->vectors, s->edges);
    eqlayers_sums(potential, s->atoms, s->edges, vectors, s->ends, s->slopes, forces, virials);
    if (s->local) fwrite(s->energies, 8, s->local, stdout);
    for (int64_t k = 0; k < 3 * s->edges; k++) {
      const double slope = number_at(s->slopes, k);
      fwrite(&slope, 8, 1, stdout);
    }
    free(forces); free(virials); free(vectors);
  }
}

/* ---- damage ----------------------------------------------------------------------------------------------------- */

static uint64_t state = 88172645463325252u;

static int64_t below(int64_t end) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (int64_t)(state % (uint64_t)end);
}

static const int64_t odd[] = {-1, 0, 1, 2, 5, 63, 64, 119, 120, 1 << 20, INT64_C(1) << 31, INT64_C(1) << 32,
                              INT64_MAX, INT64_MIN, -64, INT64_MAX - 64};
static const double not_usual[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e300, -1e30, 1e-300, 1e-45, 3.9999999, 4.0, 100};
#define ANY(values) values[below(sizeof values / sizeof *values)]

static void with_facts(uint8_t *data, int64_t size, int64_t turn) {
  eqlayers_footer facts;
  memcpy(&facts, data + size - sizeof facts, sizeof facts);
  int64_t *const sizes[] = {&facts.library_size, &facts.constants_start, &facts.constants_size};
  switch (turn % 8) {
    case 0: *sizes[below(3)] = ANY(odd); break;
    case 1: *sizes[below(3)] += 64 * (below(9) - 4); break;
    case 2: /* sizes of one sum */
      facts.constants_start += 64 * (below(9) - 4);
      facts.constants_size = size - (int64_t)sizeof facts - facts.constants_start;
      facts.library_size = below(2) ? facts.constants_start : facts.library_size;
      break;
    case 3: facts.library_size = below(facts.library_size); break;
    case 4: facts.species_count = (uint32_t)ANY(odd); break;
    case 5: facts.species[below(facts.species_count)] = ANY(odd); break;
    case 6: facts.bytes = below(2) ? 12 - facts.bytes : (uint32_t)ANY(odd); break;
    default:
      if (below(2)) facts.cutoff = ANY(not_usual);
      else facts.instructions = (uint32_t)below(INT64_C(1) << 32);
  }
  facts.checksum = 0;
  memcpy(data + size - sizeof facts, &facts, sizeof facts);
  facts.checksum = eqlayers_checksum(data, size - 4);
  memcpy(data + size - 4, &facts.checksum, 4);
}

/* A molecule of the first species, or nothing if the file is refused. */
static void use(const char *path, int64_t turn, int whole) {
  eqlayers_potential *made;
  const int status = eqlayers_open(path, &made);
  if (status < 0 || status > EQLAYERS_NO_WORKSPACE || (status != 0) != (made == NULL)) fail("no status", turn);
  if (!status && !whole) fail("a damaged file was opened", turn);
  counts[status]++;
  if (status) return;
  eqlayers_workspace *w;
  const int64_t *numbers, ends[] = {0, 1, 1, 0};
  const int species = eqlayers_species(made, &numbers);
  int64_t z[] = {numbers[0], numbers[species - 1]};
  double vectors[] = {0.9, 0.2, 0.1, -0.9, -0.2, -0.1}, energies[2], slopes[6];
  float singles[6];
  for (int n = 0; n < 6; n++) singles[n] = (float)vectors[n];
  if (eqlayers_workspace_new(made, 2, &w)) fail("there is no workspace", turn);
  const void *const of_width = eqlayers_bytes(made) == 8 ? (void *)vectors : (void *)singles;
  counts[12 + !!eqlayers_evaluate(made, w, 2, 2, z, of_width, ends, of_width, energies, slopes)]++;
  eqlayers_workspace_free(w);
  eqlayers_close(made);
}

static void damage_files(const char *path, const char *copy, int64_t turns_) {
  uint8_t *content;
  int64_t size;
  check(eqlayers_read(path, &content, &size), "the program");
  use(path, -1, 1);
  use("/", -1, 0);
  uint8_t *const data = room(size + 64);
  for (int64_t turn = 0; turn < turns_; turn++) {
    int64_t length = size, at = below(size);
    memcpy(data, content, size);
    memset(data + size, 0, 64);
    switch (turn % 6) {
      case 0: length = turn % 4 ? at : size - 1 - below(2000); break; /* cut */
      case 1: data[turn % 4 == 1 ? at : size - 1 - below(sizeof(eqlayers_footer))] ^= 1 << below(8); break;
      case 2: {                                                       /* zeros, or what lies at another offset */
        const int64_t block = 1 + below(size - at < 8192 ? size - at : 8192);
        if (turn % 4) memset(data + at, 0, block);
        else memmove(data + at, content + below(size - block), block);
        if (!memcmp(data, content, size)) data[at] ^= 1;
        break;
      }
      case 3: length = size + 1 + below(64); break;
      default: with_facts(data, size, turn / 6);
    }
    FILE *const file = fopen(copy, "wb");
    if (file == NULL || fwrite(data, 1, length, file) != (size_t)length || fclose(file)) fail("no copy", turn);
    use(copy, turn, turn % 6 > 3);
  }
  free(data); free(content);
}

/* Some inputs of a structure are changed: there is a status, or numbers. */
static void damage_input(int64_t turns_) {
  eqlayers_workspace *const w = workspace(2);
  const int stages = eqlayers_stages(potential);
  for (int64_t turn = 0; turn < turns_; turn++) {
    const structure *const whole = &structures[turn % count];
    structure s = *whole;
    int64_t *const z = room(8 * s.atoms), *const ends = room(16 * s.edges);
    void *const vectors = vectors_of(s.vectors, s.edges), *const slopes = room(3 * s.edges * width);
    double *const energies = room(8 * s.atoms);
    if (s.atoms) memcpy(z, s.z, 8 * s.atoms);
    if (s.edges) memcpy(ends, s.ends, 16 * s.edges);
    for (int64_t more = 1 + below(3); more > 0; more--) {
      const int64_t kind = below(6);
      if (kind == 0 && whole->atoms) z[below(whole->atoms)] = ANY(odd);
      if (kind == 1 && whole->edges) ends[below(2 * whole->edges)] = below(2) ? ANY(odd) : s.atoms;
      if (kind == 2 && whole->edges) set(vectors, below(3 * whole->edges), ANY(not_usual));
      if (kind == 3 && whole->edges) for (int a = 0; a < 3; a++) set(vectors, 3 * below(whole->edges) + a, 0.0);
      if (kind == 4) s.local = below(2) ? ANY(odd) : whole->local - 1;
      if (kind == 5) { /* numbers that are wrong, or fewer than there are; the second row of ends begins elsewhere then */
        int64_t *const number = below(2) ? &s.atoms : &s.edges;
        const int64_t wrong = ANY(odd);
        *number = wrong < 0 || wrong > EQLAYERS_MOST ? wrong : below(1 + (number == &s.atoms ? whole->atoms : whole->edges));
      }
    }
    s.z = z; s.ends = ends;
    int64_t status = 0;
    void *rows;
    if (turn % 2 || !stages) status = run(&s, w, vectors, energies, slopes, 0);
    else if (s.atoms < 0 || s.atoms > EQLAYERS_MOST || s.local < 0 || s.local > s.atoms || turn % 5 == 0)
      status = eqlayers_stage(potential, w, (int)ANY(odd), s.local, s.atoms, s.edges, z, vectors, ends, NULL, energies, slopes,
                              &rows);
    else {
      s.owners = room(8 * (s.atoms - s.local));
      for (int64_t k = 0; k < s.atoms - s.local; k++) s.owners[k] = s.local ? below(s.local) : -1;
      status = run(&s, w, vectors, energies, slopes, 1);
      free(s.owners);
    }
    if (status < 0 || status > EQLAYERS_NO_WORKSPACE) fail("no status", turn);
    counts[status]++;
    free(z); free(ends); free(vectors); free(slopes); free(energies);
  }
  eqlayers_workspace_free(w);
}

/* Workspaces of another potential, of one that was closed, and none. */
static void other_workspaces(const char *path) {
  eqlayers_potential *other;
  void *rows;
  eqlayers_workspace *const of_this = workspace(1), *of_other;
  for (int turn = 0; turn < 3; turn++) { /* at the same address, perhaps */
    check(eqlayers_open(path, &other), "the program again");
    check(eqlayers_workspace_new(other, 1, &of_other), "a workspace");
    check(eqlayers_evaluate(other, of_other, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL), "a workspace of the same potential");
    if (eqlayers_evaluate(other, of_this, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL) != EQLAYERS_NO_WORKSPACE ||
        eqlayers_evaluate(potential, of_other, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL) != EQLAYERS_NO_WORKSPACE ||
        eqlayers_stage(other, of_this, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, &rows) != EQLAYERS_NO_WORKSPACE ||
        eqlayers_evaluate(other, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL) != EQLAYERS_NO_WORKSPACE)
      fail("another workspace is used", turn);
    eqlayers_workspace_free(of_other);
    eqlayers_close(other);
  }
  eqlayers_workspace_free(of_this);
}

int main(int words, char **word) {
  if (words < 4) fail("a command, a program and a file must follow", words);
  if (strcmp(word[1], "files") == 0) damage_files(word[2], word[3], atoll(word[4]));
  else {
    eqlayers_potential *opened;
    check(eqlayers_open(word[2], &opened), "the program");
    potential = opened;
    width = eqlayers_bytes(potential);
    FILE *const file = fopen(word[3], "rb");
    if (file == NULL || fread(&count, 8, 1, file) != 1) fail("there are no structures", 0);
    structures = calloc(count, sizeof *structures);
    for (int64_t n = 0; n < count; n++) {
      structure *const s = &structures[n];
      if (fread(s, 8, 3, file) != 3) fail("structures are cut", n);
      s->z = load(file, s->atoms);
      s->ends = load(file, 2 * s->edges);
      s->owners = load(file, s->atoms - s->local);
      s->vectors = load(file, 3 * s->edges);
    }
    fclose(file);
    other_workspaces(word[2]);
    if (strcmp(word[1], "run") == 0) run_all();
    else damage_input(atoll(word[4]));
    for (int64_t n = 0; n < count; n++) {
      structure *const s = &structures[n];
      free(s->z); free(s->ends); free(s->owners); free(s->vectors); free(s->energies); free(s->slopes);
    }
    free(structures);
    eqlayers_close(opened);
  }
  if (strcmp(word[1], "run"))
    for (int status = 0; status < 16; status++) printf("%d ", counts[status]);
  return 0;
}
