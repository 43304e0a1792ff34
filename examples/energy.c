/* Energy and forces of a molecule of water, by a file that `eqlayers deploy water.pt -o water.so --dtype float64` wrote.

   cc -O2 -I path/of/eqlayers/native energy.c -o energy -ldl -lm -lpthread && ./energy water.so */
#define EQLAYERS_IMPLEMENTATION
#include "eqlayers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ATOMS = 3 };
static const int64_t z[ATOMS] = {8, 1, 1};
static const double pos[ATOMS][3] = {{0.0, 0.0, 0.119}, {0.0, 0.763, -0.477}, {0.0, -0.763, -0.477}};

static void check(int status) {
  if (status == EQLAYERS_DONE) return;
  fprintf(stderr, "energy: %s\n", eqlayers_sentence(status));
  exit(1);
}

int main(int count, char **arguments) {
  if (count != 2) {
    fprintf(stderr, "energy: one file must follow, such as water.so\n");
    return 1;
  }
  eqlayers_potential *potential;
  check(eqlayers_open(arguments[1], &potential));
  if (eqlayers_bytes(potential) != sizeof(double)) {
    fprintf(stderr, "energy: the file must be of float64\n");
    return 1;
  }

  /* every pair in both directions: senders, then receivers */
  int64_t from[ATOMS * ATOMS], to[ATOMS * ATOMS], ends[2 * ATOMS * ATOMS], edges = 0;
  double vectors[ATOMS * ATOMS][3], slopes[ATOMS * ATOMS][3], energies[ATOMS], forces[ATOMS][3], virials[ATOMS][9];
  for (int i = 0; i < ATOMS; i++)
    for (int j = 0; j < ATOMS; j++) {
      double square = 0;
      for (int a = 0; a < 3; a++) square += (pos[j][a] - pos[i][a]) * (pos[j][a] - pos[i][a]);
      if (i == j || sqrt(square) > eqlayers_cutoff(potential)) continue;
      for (int a = 0; a < 3; a++) vectors[edges][a] = pos[j][a] - pos[i][a];
      from[edges] = i;
      to[edges++] = j;
    }
  for (int64_t e = 0; e < edges; e++) {
    ends[e] = from[e];
    ends[edges + e] = to[e];
  }

  eqlayers_workspace *workspace;
  check(eqlayers_workspace_new(potential, 1, &workspace));
  check(eqlayers_evaluate(potential, workspace, ATOMS, edges, z, vectors, ends, NULL, energies, slopes));
  eqlayers_sums(potential, ATOMS, edges, vectors, ends, slopes, forces[0], virials[0]);
  printf("energy %.12f eV\n", energies[0] + energies[1] + energies[2]);
  for (int i = 0; i < ATOMS; i++) printf("force %.12f %.12f %.12f eV/Angstrom\n", forces[i][0], forces[i][1], forces[i][2]);
  for (int i = 0; i < ATOMS; i++) printf("virial %.12f eV\n", virials[i][0] + virials[i][4] + virials[i][8]);
  eqlayers_workspace_free(workspace);
  eqlayers_close(potential);
  return 0;
}
