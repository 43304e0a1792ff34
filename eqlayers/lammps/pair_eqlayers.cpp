/* Pair style eqlayers of LAMMPS: potentials that `eqlayers deploy` wrote, without Python and torch.

     pair_style eqlayers
     pair_coeff * * water.so O H

   `eqlayers lammps build` compiles this file as a plugin. A process has atoms, and ghosts, which are copies of atoms.
   The potential runs in stages: between two of them, LAMMPS copies features of atoms to their ghosts, or adds gradients
   of ghosts to their atoms. Forces on ghosts and their virials go back as in other pair styles. */
#define EQLAYERS_IMPLEMENTATION
#include "eqlayers.h"

#include "atom.h"
#include "comm.h"
#include "error.h"
#include "force.h"
#include "lammps.h"
#include "library.h"
#include "memory.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "pair.h"
#include "update.h"
#include "utils.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mpi.h>
#include <sstream>
#include <string>
#include <vector>

namespace LAMMPS_NS {

/* Symbols of all elements in the order of atomic numbers, by the builder. */
static const char SYMBOLS[] = EQLAYERS_SYMBOLS;

/* Vectors of edges and slopes, in the type of the potential, and factors of energies; no factors are ones. */
template <class T> struct Edges {
  std::vector<T> vectors, slopes, factors;
};

class PairEqlayers : public Pair {
 public:
  explicit PairEqlayers(LAMMPS *lmp) : Pair(lmp) {
    restartinfo = 0;
    single_enable = 0;
    one_coeff = 1;
    manybody_flag = 1;
    no_virial_fdotr_compute = 1;
    centroidstressflag = CENTROID_AVAIL;
  }

  ~PairEqlayers() override {
    close();
    if (!allocated) return;
    memory->destroy(setflag);
    memory->destroy(cutsq);
  }

  void settings(int count, char **words) override {
    if (count == 0) return;
    error->all(FLERR, "Pair style eqlayers must have no options, got {}. Files belong to pair_coeff.", words[0]);
  }

  void coeff(int count, char **words) override {
    if (count < 4)
      error->all(FLERR, "Pair_coeff of eqlayers must have a file and an element for each type, got {} words. Write: "
                        "pair_coeff * * water.so O H", count);
    allocate();
    open(words[2]);
    map_element2type(count - 3, words + 3);
    const int64_t *known;
    const int species = eqlayers_species(potential, &known);
    numbers.assign(atom->ntypes + 1, -1);
    for (int type = 1; type <= atom->ntypes; type++) {
      if (map[type] < 0 && force->pair == this)
        error->all(FLERR, "Pair style eqlayers must know all types, got NULL for type {}. Let another style have its "
                          "pairs: pair_style hybrid.", type);
      if (map[type] < 0) continue;
      const char *const symbol = elements[map[type]];
      const int64_t number = number_of(symbol);
      if (std::find(known, known + species, number) == known + species)
        error->all(FLERR, "Elements of pair_coeff must be species of {}, or NULL, got {}. `eqlayers info` lists them.",
                   words[2], symbol);
      numbers[type] = number;
    }
  }

  void init_style() override {
    if (!force->newton_pair)
      error->all(FLERR, "Newton must be on for pair style eqlayers, got off. Forces on ghosts go back to their atoms: "
                        "write `newton on` before the box is made.");
    if (strcmp(update->unit_style, "metal") == 0) scale = 1.0;
    else if (strcmp(update->unit_style, "real") == 0)
      scale = utils::get_conversion_factor(utils::ENERGY, utils::METAL2REAL);
    else error->all(FLERR, "Units must be metal or real for pair style eqlayers, got {}.", update->unit_style);
    for (int bonds = 1; bonds <= 3 && atom->molecular != Atom::ATOMIC; bonds++)
      if (force->special_lj[bonds] == 0.0 && force->special_coul[bonds] == 0.0)
        error->all(FLERR, "Neighbours that bonds connect must stay in the lists of pair style eqlayers, got "
                          "special_bonds 0 for 1-{}. Write `special_bonds lj/coul 1 1 1`, or 1e-50 where another style "
                          "needs 0.", bonds + 1);
    /* LAMMPS sizes its buffers for the style that it knows, which may be a hybrid */
    force->pair->comm_forward = std::max(force->pair->comm_forward, comm_forward);
    force->pair->comm_reverse = std::max(force->pair->comm_reverse, comm_reverse);
    neighbor->add_request(this, NeighConst::REQ_FULL);
  }

  double init_one(int, int) override { return eqlayers_cutoff(potential); }

  void compute(int eflag, int vflag) override {
    ev_init(eflag, vflag);
    list_atoms();
    if (eqlayers_bytes(potential) == 4) evaluate(floats);
    else evaluate(doubles);
  }

  int pack_forward_comm(int count, int *atoms, double *buffer, int, int *) override {
    return pack(count, buffer, [=](int n) { return atoms[n]; });
  }

  void unpack_forward_comm(int count, int first, double *buffer) override {
    unpack(count, buffer, false, [=](int n) { return first + n; });
  }

  int pack_reverse_comm(int count, int first, double *buffer) override {
    return pack(count, buffer, [=](int n) { return first + n; });
  }

  void unpack_reverse_comm(int count, int *atoms, double *buffer) override {
    unpack(count, buffer, true, [=](int n) { return atoms[n]; });
  }

  double memory_usage() override {
    const size_t numbers = z.capacity() + ends.capacity() + receivers.capacity();
    const size_t results = energies.capacity() + forces.capacity() + virials.capacity();
    const int64_t bytes = potential == nullptr ? 0 : eqlayers_workspace_bytes(workspace);
    return Pair::memory_usage() + (double)bytes + 8.0 * (double)(numbers + results) + bytes_of(floats) +
           bytes_of(doubles);
  }

 private:
  eqlayers_potential *potential = nullptr;
  eqlayers_workspace *workspace = nullptr;
  double scale = 1.0;               /* of energies, from eV to the units of the input */
  std::vector<int64_t> numbers;     /* type -> atomic number, -1 for types that the potential does not know */
  std::vector<int64_t> z, ends, receivers;
  std::vector<int> rows, atoms;     /* atom of LAMMPS -> atom of the potential or -1, and back */
  int64_t local = 0;                /* atoms of the potential that are no ghosts: the first */
  std::vector<double> energies, forces, virials;
  Edges<float> floats;
  Edges<double> doubles;
  char *exchanged = nullptr;        /* the rows that are exchanged now */
  char *of_ones = nullptr;          /* beside them, their gradients for factors of 1, or null */
  int64_t row_bytes = 0;
  int width = 0;                    /* doubles of a row in the buffers of LAMMPS */
  int axis = 0;                     /* factors are positions along it, from the center */
  double center[3] = {0.0, 0.0, 0.0};
  std::vector<std::vector<char>> gradients; /* of each stage before its exchange, for factors of 1 */
  bool tried = false;               /* whether gradients are linear in the factors */

  template <class T> static double bytes_of(const Edges<T> &edges) {
    return sizeof(T) * (double)(edges.vectors.capacity() + edges.slopes.capacity() + edges.factors.capacity());
  }

  int64_t number_of(const char *symbol) const {
    std::istringstream words(SYMBOLS);
    std::string word;
    for (int64_t number = 1; words >> word; number++)
      if (word == symbol) return number;
    return -1;
  }

  void allocate() {
    const int size = atom->ntypes + 1;
    if (!allocated) {
      memory->create(setflag, size, size, "pair:setflag");
      memory->create(cutsq, size, size, "pair:cutsq");
      map = new int[size];
    }
    allocated = 1;
    for (int i = 1; i < size; i++) std::fill(setflag[i], setflag[i] + size, 0);
  }

  void close() {
    if (potential != nullptr) eqlayers_workspace_free(workspace);
    eqlayers_close(potential);
    potential = nullptr;
    workspace = nullptr;
  }

  /* All processes open the file, and all end if one of them cannot. */
  void open(const char *name) {
    close();
    const std::string path = utils::get_potential_file_path(name);
    int status = path.empty() ? (int)EQLAYERS_NO_FILE : eqlayers_open(path.c_str(), &potential), worst;
    if (!status) status = eqlayers_workspace_new(potential, comm->nthreads, &workspace);
    MPI_Allreduce(&status, &worst, 1, MPI_INT, MPI_MAX, world);
    if (worst) error->all(FLERR, "Pair style eqlayers: {}, got {}.", eqlayers_sentence(worst), name);
    if (eqlayers_stages(potential) == 0)
      error->all(FLERR, "Potentials of pair style eqlayers must have stages, got {}, whose network needs the whole structure "
                        "at once.", name);
    comm_forward = comm_reverse = 0;
    tried = false;
    for (int stage = 0; stage < eqlayers_stages(potential); stage++) {
      int64_t columns = 0;
      int linear = 0;
      const int kind = eqlayers_exchange(potential, stage, &columns, &linear);
      int &most = kind == EQLAYERS_ADD ? comm_reverse : comm_forward;
      if (kind != EQLAYERS_NOTHING) most = std::max(most, (1 + linear) * width_of(columns));
    }
  }

  /* Doubles that hold a row of so many columns. */
  int width_of(int64_t columns) const { return (int)((columns * eqlayers_bytes(potential) + 7) / 8); }

  /* The position of an atom of LAMMPS that is its factor. */
  double factor(int one) const { return atom->x[one][axis] - center[axis]; }

  /* to += scale * from, of a row; or to = scale * from. */
  template <class T> void add(char *to, const char *from, double scale, bool sum) const {
    T *const results = (T *)to;
    const T *const terms = (const T *)from;
    for (int64_t n = 0; n < row_bytes / (int64_t)sizeof(T); n++)
      results[n] = sum ? results[n] + (T)scale * terms[n] : (T)scale * terms[n];
  }

  void add(char *to, const char *from, double scale, bool sum) const {
    if (eqlayers_bytes(potential) == 4) add<float>(to, from, scale, sum);
    else add<double>(to, from, scale, sum);
  }

  /* Gradients are passed on for factors that are positions from the atom, which its images have too. */
  template <class Atoms> int pack(int count, double *buffer, Atoms one_of) const {
    double *end = buffer;
    for (int n = 0; n < count; n++) {
      const int one = one_of(n);
      if (rows[one] < 0) continue;
      const int64_t at = rows[one] * row_bytes;
      memcpy(end, exchanged + at, row_bytes);
      if (of_ones != nullptr) {
        add((char *)end, of_ones + at, -factor(one), true);
        memcpy(end += width, of_ones + at, row_bytes);
      }
      end += width;
    }
    return (int)(end - buffer);
  }

  template <class Atoms> void unpack(int count, const double *buffer, bool sum, Atoms one_of) {
    for (int n = 0; n < count; n++) {
      const int one = one_of(n);
      if (rows[one] < 0) continue;
      const int64_t at = rows[one] * row_bytes;
      add(exchanged + at, (const char *)buffer, 1.0, sum);
      if (of_ones != nullptr) {
        buffer += width;
        add(exchanged + at, (const char *)buffer, factor(one), true);
        add(of_ones + at, (const char *)buffer, 1.0, sum);
      }
      buffer += width;
    }
  }

  /* Atoms that the potential knows: own ones, then ghosts. */
  void list_atoms() {
    const int total = atom->nlocal + atom->nghost;
    rows.assign(total, -1);
    z.clear();
    atoms.clear();
    z.reserve(total + 1); /* no NULL without atoms */
    for (int n = 0; n < total; n++) {
      if (n == atom->nlocal) local = (int64_t)z.size();
      if (numbers[atom->type[n]] < 0) continue;
      rows[n] = (int)z.size();
      z.push_back(numbers[atom->type[n]]);
      atoms.push_back(n);
    }
    if (atom->nghost == 0) local = (int64_t)z.size();
  }

  template <class T> void evaluate(Edges<T> &edges) {
    list_edges(edges);
    edges.factors.clear();
    run_stages(edges);
    for (int64_t n = 0; n < local; n++) {
      if (!std::isfinite(energies[n]))
        error->one(FLERR, "The energy of each atom must be finite, got {} for the atom {}. Look at its neighbours.",
                   energies[n], atom->tag[atoms[n]]);
      if (eflag_global) eng_vdwl += scale * energies[n];
      if (eflag_atom) eatom[atoms[n]] += scale * energies[n];
    }
    add_forces(edges);
    if (cvflag_atom) add_currents(edges);
  }

  /* Edges to the atoms of this process, by receivers; vectors are from senders to receivers. Lists of a hybrid have no
     types that the potential does not know. */
  template <class T> void list_edges(Edges<T> &edges) {
    const double cutoff = eqlayers_cutoff(potential), *const *const x = atom->x;
    ends.clear();
    receivers.clear();
    edges.vectors.clear();
    ends.reserve(1);
    edges.vectors.reserve(1);
    edges.slopes.reserve(1);
    for (int n = 0; n < list->inum; n++) {
      const int i = list->ilist[n];
      for (int k = 0; k < list->numneigh[i]; k++) {
        const int j = list->firstneigh[i][k] & NEIGHMASK;
        const double v[] = {x[i][0] - x[j][0], x[i][1] - x[j][1], x[i][2] - x[j][2]};
        if (v[0] * v[0] + v[1] * v[1] + v[2] * v[2] > cutoff * cutoff) continue;
        ends.push_back(rows[j]);
        receivers.push_back(rows[i]);
        for (const double component : v) edges.vectors.push_back((T)component);
      }
    }
    ends.insert(ends.end(), receivers.begin(), receivers.end());
    edges.slopes.resize(edges.vectors.size());
  }

  /* A process without atoms runs all stages too: each exchange is one of all processes. Gradients for factors of 1
     are kept if a current of heat needs them. Factors are positions, or -2 for all atoms and images in a trial. */
  template <class T> void run_stages(Edges<T> &edges, bool trial = false) {
    const T *const factors = edges.factors.empty() ? nullptr : edges.factors.data();
    const bool weighted = factors != nullptr && !trial;
    const int64_t all = (int64_t)z.size(), count = (int64_t)receivers.size();
    std::vector<char> ones;
    energies.resize(all + 1);
    gradients.resize(eqlayers_stages(potential));
    for (int stage = 0; stage < eqlayers_stages(potential); stage++) {
      void *computed = nullptr;
      const int status =
          eqlayers_stage(potential, workspace, stage, local, all, count, z.data(), edges.vectors.data(), ends.data(),
                         factors, energies.data(), edges.slopes.data(), &computed);
      if (status) fail(status);
      int64_t columns = 0;
      int linear = 0;
      const int kind = eqlayers_exchange(potential, stage, &columns, &linear);
      exchanged = (char *)computed;
      row_bytes = columns * eqlayers_bytes(potential);
      width = width_of(columns);
      if (linear && cvflag_atom && factors == nullptr) gradients[stage].assign(exchanged, exchanged + all * row_bytes);
      if (linear && trial) compare((const T *)computed, (const T *)gradients[stage].data(), local * columns);
      if (linear && weighted) ones = gradients[stage];
      ones.reserve(1); /* no NULL without atoms */
      of_ones = linear && weighted ? ones.data() : nullptr;
      const int size = of_ones == nullptr ? width : 2 * width;
      if (kind == EQLAYERS_COPY) comm->forward_comm(this, size);
      if (kind == EQLAYERS_ADD) comm->reverse_comm(this, size);
    }
  }

  /* A network with a reverse pass of its own may add other numbers to gradients. A factor of -2 has no rounding. */
  template <class T> void compare(const T *twice, const T *one, int64_t count) {
    for (int64_t n = 0; n < count; n++)
      if (std::fabs(twice[n] + 2 * one[n]) > 1e-6 * std::fabs(one[n]) + 1e-30)
        error->one(FLERR, "Gradients must be linear in factors of energies for centroid/stress/atom, got {} for "
                          "factors of -2 and {} for 1. Use torch's reverse pass, or stress/atom without a current of "
                          "heat.", twice[n], one[n]);
  }

  /* Ends all processes: others wait in an exchange for this one. */
  [[noreturn]] void fail(int status) {
    error->one(FLERR, "Pair style eqlayers: {}, got otherwise for {} atoms, {} ghosts and {} edges of process {}.",
               eqlayers_sentence(status), local, (int64_t)z.size() - local, receivers.size(), comm->me);
  }

  template <class T> void add_forces(const Edges<T> &edges) {
    static const int FIRST[] = {0, 1, 2, 0, 0, 1, 1, 2, 2}, SECOND[] = {0, 1, 2, 1, 2, 2, 0, 0, 1};
    const int64_t count = (int64_t)receivers.size();
    forces.resize(3 * z.size() + 1);
    virials.resize(9 * z.size() + 1);
    const bool wanted = vflag_global || vflag_atom;
    eqlayers_sums(potential, z.size(), count, edges.vectors.data(), ends.data(), edges.slopes.data(), forces.data(),
                  wanted ? virials.data() : nullptr);
    for (size_t n = 0; n < z.size(); n++) {
      for (int a = 0; a < 3; a++) atom->f[atoms[n]][a] += scale * forces[3 * n + a];
      for (int k = 0; wanted && k < 6; k++) {
        const double part = scale * virials[9 * n + 3 * FIRST[k] + SECOND[k]];
        if (vflag_global) virial[k] += part;
        if (vflag_atom) vatom[atoms[n]][k] += part;
      }
    }
  }

  /* For currents of heat, the matrix of atom k is the sum over atoms i of (r_i - r_k) times the derivative of the
     energy of i by r_k (Langer et al. 2023, doi 10.1103/PhysRevB.108.L100302). Without exchanges, an edge changes the
     energy of its receiver alone. Else it changes energies of many atoms, and of images of atoms: factors are
     positions, along one axis at a time. */
  template <class T> void add_currents(Edges<T> &edges) {
    static const int COLUMN[3][3] = {{0, 3, 4}, {6, 1, 5}, {7, 8, 2}};
    if (eqlayers_stages(potential) == 1) {
      for (size_t e = 0; e < receivers.size(); e++)
        for (int k = 0, a = 0, b = 0; k < 9; k++, a = k / 3, b = k % 3)
          cvatom[atoms[ends[e]]][COLUMN[a][b]] -= scale * edges.vectors[3 * e + a] * edges.slopes[3 * e + b];
      return;
    }
    const std::vector<T> slopes = edges.slopes;
    edges.factors.assign(z.size() + 1, (T)-2);
    if (!tried) run_stages(edges, true);
    tried = true;
    for (axis = 0; axis < 3; axis++) {
      center[axis] = 0.0; /* small factors have small roundings */
      for (const int one : atoms) center[axis] += atom->x[one][axis] / (double)atoms.size();
      for (size_t n = 0; n < z.size(); n++) edges.factors[n] = (T)factor(atoms[n]);
      run_stages(edges);
      for (size_t e = 0; e < receivers.size(); e++)
        for (int b = 0; b < 3; b++)
          for (const bool sender : {false, true}) {
            const int one = atoms[sender ? ends[e] : receivers[e]];
            const double part = edges.slopes[3 * e + b] - factor(one) * slopes[3 * e + b];
            cvatom[one][COLUMN[axis][b]] += scale * (sender ? -part : part);
          }
    }
    for (std::vector<char> &one : gradients) std::vector<char>().swap(one);
  }
};

static Pair *make(LAMMPS *lmp) {
  if (lammps_version(lmp) != EQLAYERS_LAMMPS_NUMBER)
    lmp->error->all(FLERR, "The plugin of pair style eqlayers must be compiled for this LAMMPS, got one for {}. Run "
                           "`eqlayers lammps build` again.", EQLAYERS_LAMMPS_VERSION);
  return new PairEqlayers(lmp);
}

}    // namespace LAMMPS_NS

/* What lammpsplugin.h declares, which packages of LAMMPS may lack. */
extern "C" {
typedef struct {
  const char *version, *style, *name, *info, *author;
  void *creator, *handle;
} lammpsplugin_t;

__attribute__((visibility("default"))) void lammpsplugin_init(void *lmp, void *handle, void *regfunc) {
  lammpsplugin_t plugin = {EQLAYERS_LAMMPS_VERSION, "pair",  "eqlayers", "potentials of eqlayers",
                           "the eqlayers authors",  (void *)&LAMMPS_NS::make, handle};
  ((void (*)(lammpsplugin_t *, void *))regfunc)(&plugin, lmp);
}
}
