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

/* Vectors of edges and slopes of the energy, in the type of the potential. */
template <class T> struct Edges {
  std::vector<T> vectors, slopes;
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
    double *end = buffer;
    for (int n = 0; n < count; n++)
      if (const char *const one = row(atoms[n])) {
        memcpy(end, one, row_bytes);
        end += width;
      }
    return (int)(end - buffer);
  }

  void unpack_forward_comm(int count, int first, double *buffer) override {
    for (int n = first; n < first + count; n++)
      if (char *const one = row(n)) {
        memcpy(one, buffer, row_bytes);
        buffer += width;
      }
  }

  int pack_reverse_comm(int count, int first, double *buffer) override {
    double *end = buffer;
    for (int n = first; n < first + count; n++)
      if (const char *const one = row(n)) {
        memcpy(end, one, row_bytes);
        end += width;
      }
    return (int)(end - buffer);
  }

  void unpack_reverse_comm(int count, int *atoms, double *buffer) override {
    for (int n = 0; n < count; n++)
      if (char *const one = row(atoms[n])) {
        if (eqlayers_bytes(potential) == 4) add<float>(one, buffer);
        else add<double>(one, buffer);
        buffer += width;
      }
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
  int64_t row_bytes = 0;
  int width = 0;                    /* doubles of a row in the buffers of LAMMPS */
  bool warned = false;              /* about currents of heat */

  template <class T> static double bytes_of(const Edges<T> &edges) {
    return sizeof(T) * (double)(edges.vectors.capacity() + edges.slopes.capacity());
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
    for (int stage = 0; stage < eqlayers_stages(potential); stage++) {
      int64_t columns = 0;
      const int kind = eqlayers_exchange(potential, stage, &columns);
      int &most = kind == EQLAYERS_ADD ? comm_reverse : comm_forward;
      if (kind != EQLAYERS_NOTHING) most = std::max(most, width_of(columns));
    }
  }

  /* Doubles that hold a row of so many columns. */
  int width_of(int64_t columns) const { return (int)((columns * eqlayers_bytes(potential) + 7) / 8); }

  char *row(int one) const { return rows[one] < 0 ? nullptr : exchanged + rows[one] * row_bytes; }

  template <class T> void add(char *to, const double *from) const {
    T *const sums = (T *)to;
    const T *const terms = (const T *)from;
    for (int64_t n = 0; n < row_bytes / (int64_t)sizeof(T); n++) sums[n] += terms[n];
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
    run_stages(edges);
    for (int64_t n = 0; n < local; n++) {
      if (!std::isfinite(energies[n]))
        error->one(FLERR, "The energy of each atom must be finite, got {} for the atom {}. Look at its neighbours.",
                   energies[n], atom->tag[atoms[n]]);
      if (eflag_global) eng_vdwl += scale * energies[n];
      if (eflag_atom) eatom[atoms[n]] += scale * energies[n];
    }
    add_forces(edges);
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

  /* A process without atoms runs all stages too: each exchange is one of all processes. */
  template <class T> void run_stages(Edges<T> &edges) {
    const int64_t all = (int64_t)z.size(), count = (int64_t)receivers.size();
    energies.resize(all + 1);
    for (int stage = 0; stage < eqlayers_stages(potential); stage++) {
      void *computed = nullptr;
      const int status =
          eqlayers_stage(potential, workspace, stage, local, all, count, z.data(), edges.vectors.data(), ends.data(),
                         energies.data(), edges.slopes.data(), &computed);
      if (status) fail(status);
      int64_t columns = 0;
      const int kind = eqlayers_exchange(potential, stage, &columns);
      exchanged = (char *)computed;
      row_bytes = columns * eqlayers_bytes(potential);
      width = width_of(columns);
      if (kind == EQLAYERS_COPY) comm->forward_comm(this, width);
      if (kind == EQLAYERS_ADD) comm->reverse_comm(this, width);
    }
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
    if (cvflag_atom && !warned && comm_forward + comm_reverse > 0 && comm->me == 0)
      error->warning(FLERR, "The sum of compute heat/flux is no current of heat for potentials of more than one layer. "
                            "Use fix ehex or fix thermal/conductivity for conductivities.");
    warned = warned || cvflag_atom;
    /* for currents of heat, the work of an edge is of the sender, whose motion changes the energy of the receiver */
    if (cvflag_atom)
      for (int64_t e = 0; e < count; e++)
        for (int k = 0; k < 9; k++)
          cvatom[atoms[ends[e]]][k] -= scale * edges.vectors[3 * e + FIRST[k]] * edges.slopes[3 * e + SECOND[k]];
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
