/* Runs the stages of a program on parts of a structure ("tiles"): some atoms, and copies ("ghosts") of other senders of
   their edges. Threads take tiles. What tiles there are does not depend on the threads, and sums over tiles have one
   order, so results have the same bits for any number of threads.

   Before this file lie the tables of the program: entries, exchanges, places_of, flags, stages. */
#include <pthread.h>
#include <stdlib.h>

/* Of a tile, rows of ghosts are copied and added: fewer and larger tiles cost less, more tiles serve more threads. */
enum { TILE_ATOMS = 256, LEAST_ATOMS = 32, FEW_TILES = 4, ROUND = 32, MOST_THREADS = 256 };
/* Bytes that tiles keep from stage to stage, which machines can spare. Where it would be more, stages run steps again. */
enum { KEPT_AT_MOST = 536870912 };
enum { SCRATCH, KEPT, SUMS };
enum { ALWAYS, SMALL, LARGE };
enum { NOTHING, COPY, ADD };
enum { Z = 1, VECTORS = 2, ENDS = 4, FACTORS = 8, ENERGIES = 16, SLOPES = 32 };
enum { TILES, IDS, EDGE_LISTS, PLACES, KEPT_BYTES, SHARED, SUMS_BYTES, SCRATCH_BYTES, BLOCKS };
typedef NUMBER number;

typedef struct {
  int64_t local, atoms, edges; /* atoms counts ghosts too */
  int64_t first_id, first_edge, kept;
} tile;

typedef struct {
  void *memory;
  int64_t size;
} block;

struct workspace {
  block blocks[BLOCKS];
  int64_t large; /* whether steps are run again in place of keeping their results */
  int64_t round;                     /* tiles whose sums are in memory side by side */
  int64_t threads, tiles, kept_entries, most[3], scratch, inputs, sums, local, atoms, edges, next;
  int64_t places[ENTRIES + 1];       /* of scratch entries, and of kept ones in the list of a tile */
  int64_t shared_at[EXCHANGES + 1], sums_at[EXCHANGES + 1];
};

/* Arguments of a call. */
typedef struct {
  struct workspace *w;
  const char *constants;
  const int64_t *z, *ends;
  const number *vectors, *factors;
  double *energies;
  number *slopes;
  int64_t stage, first_tile, round, count, next, status;
  void (*work)(void *, int64_t, int64_t);
} call;

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* Memory of at least so many bytes, aligned, kept from call to call unless it is far too large. */
static void *reserve(struct workspace *w, int number_of, int64_t bytes) {
  block *const one = &w->blocks[number_of];
  if (one->memory == NULL || one->size < bytes || one->size > 4 * bytes + (1 << 20)) {
    one->size = bytes + 64 + (one->memory == NULL ? 0 : bytes / 8); /* grows by more than is needed, once it grows */
    free(one->memory);
    one->memory = NULL;
    if (one->size < 0 || posix_memalign(&one->memory, 64, one->size)) { one->memory = NULL; one->size = 0; }
  }
  return one->memory;
}

static int64_t bytes_of(int n, int64_t A, int64_t L, int64_t E) {
  const int64_t *const e = entries[n];
  return ((e[0] * E + e[1] * A + e[2] * L + e[3]) * e[4] + 127) / 64 * 64;
}

/* Whether memory is of a kind, and is needed. */
static int is(int n, int kind, int64_t large) {
  return entries[n][7] == kind && (entries[n][8] == ALWAYS || entries[n][8] == (large ? LARGE : SMALL));
}

/* Places of all entries of a kind, each at the first free bytes while it is used; the bytes of all. */
static int64_t fit(int kind, int64_t large, int64_t A, int64_t L, int64_t E, int64_t *places) {
  int64_t top = 0;
  for (int n = 0; n < ENTRIES; n++) {
    if (!is(n, kind, large)) continue;
    const int64_t size = bytes_of(n, A, L, E);
    int64_t at = 0;
    for (int moved = 1; moved;) {
      moved = 0;
      for (int m = 0; m < n; m++) {
        if (!is(m, kind, large) || entries[m][6] < entries[n][5] || entries[m][5] > entries[n][6]) continue;
        const int64_t end = places[m] + bytes_of(m, A, L, E);
        if (places[m] < at + size && at < end) { at = end; moved = 1; }
      }
    }
    places[n] = at;
    if (at + size > top) top = at + size;
  }
  return top;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------ */

#define RAISE(a, b) do { if ((a) < (b)) (a) = (b); } while (0)

/* Divides local atoms into tiles of neighbours, lists their ghosts and edges, and plans memory. */
static int64_t make_tiles(struct workspace *w, int64_t local, int64_t atoms, int64_t edges, const int64_t *ends) {
  const int64_t *const src = ends, *const dst = ends + edges;
  int64_t per = local;
  if (DIVIDED) {
    per = (local + FEW_TILES - 1) / FEW_TILES;
    per = per < LEAST_ATOMS ? LEAST_ATOMS : per > TILE_ATOMS ? TILE_ATOMS : per;
  }
  const int64_t most = local == 0 ? 1 : (local + per - 1) / per;
  tile *const tiles = reserve(w, TILES, most * sizeof *tiles);
  int32_t *const of_edges = reserve(w, EDGE_LISTS, (3 * edges + 1) * sizeof *of_edges);
  int32_t *const first = malloc((4 * atoms + 2 * edges + local + 8) * sizeof *first);
  if (tiles == NULL || of_edges == NULL || first == NULL) { free(first); return MEMORY; }
  int32_t *const by_receiver = first + atoms + 2, *const queue = by_receiver + edges + 1;
  int32_t *const mark = queue + local + 1, *const row = mark + atoms + 1, *const ids = row + atoms + 1;
  memset(first, 0, (atoms + 2) * sizeof *first);
  for (int64_t e = 0; e < edges; e++) first[dst[e] + 2]++;
  for (int64_t i = 2; i < atoms + 2; i++) first[i] += first[i - 1];
  for (int64_t e = 0; e < edges; e++) by_receiver[first[dst[e] + 1]++] = e;
  /* mark: -1 of free atoms, and -2 - t of those that tile t saw while it grew; taken ones have 0 */
  for (int64_t i = 0; i < atoms; i++) mark[i] = -1;
  int64_t count = 0, lowest = 0, ids_end = 0, edges_end = 0, head = 0, tail = 0;
  memset(w->most, 0, sizeof w->most);
  for (int64_t done = 0; done < local || count == 0; count++) {
    tile *const t = &tiles[count];
    *t = (tile){.first_id = ids_end, .first_edge = edges_end};
    int64_t seed = -1;
    while (head < tail && seed < 0) { seed = mark[queue[head]] ? queue[head] : -1; head++; }
    if (most == 1) {
      for (int64_t i = 0; i < local; i++) { ids[ids_end++] = i; mark[i] = 0; }
    } else {
      head = tail = 0;
      while (ids_end - t->first_id < per && done + ids_end - t->first_id < local) {
        if (head == tail) {
          while (seed < 0 && mark[lowest] == 0) lowest++;
          queue[tail++] = seed < 0 ? lowest : seed;
          seed = -1;
        }
        const int32_t i = queue[head++];
        if (mark[i] == 0) continue;
        mark[i] = 0;
        ids[ids_end++] = i;
        for (int32_t k = first[i]; k < first[i + 1]; k++) {
          const int64_t j = src[by_receiver[k]];
          if (j < local && mark[j] && mark[j] != -2 - count && tail < local) { mark[j] = -2 - count; queue[tail++] = j; }
        }
      }
    }
    t->local = ids_end - t->first_id;
    done += t->local;
  }
  /* ghosts and edges: mark is the tile + 1 whose row the atom has */
  memset(mark, 0, atoms * sizeof *mark);
  int64_t ids_of_all = 0;
  int32_t *const owned = queue; /* the ids of all tiles, one after the other */
  memcpy(owned, ids, local * sizeof *ids);
  for (int64_t n = 0, at = 0; n < count; n++) {
    tile *const t = &tiles[n];
    t->first_id = ids_of_all;
    const int64_t rows = most == 1 ? atoms : t->local; /* the only tile has all ghosts in the caller's order */
    for (int64_t r = 0; r < rows; r++) {
      const int32_t i = most == 1 ? r : owned[at + r];
      ids[ids_of_all++] = i;
      mark[i] = n + 1;
      row[i] = r;
    }
    if (!DIVIDED) /* edges in the caller's order, which the program may depend on */
      for (int64_t e = 0; e < edges; e++) {
        int32_t *const edge = of_edges + 3 * edges_end++;
        edge[0] = e; edge[1] = src[e]; edge[2] = dst[e];
      }
    else for (int64_t r = 0; r < t->local; r++)
      for (int32_t k = first[owned[at + r]]; k < first[owned[at + r] + 1]; k++) {
        const int32_t e = by_receiver[k];
        const int64_t j = src[e];
        if (mark[j] != n + 1) { mark[j] = n + 1; row[j] = ids_of_all - t->first_id; ids[ids_of_all++] = j; }
        int32_t *const edge = of_edges + 3 * edges_end++;
        edge[0] = e; edge[1] = row[j]; edge[2] = r;
      }
    at += t->local;
    t->atoms = ids_of_all - t->first_id;
    t->first_edge = n ? tiles[n - 1].first_edge + tiles[n - 1].edges : 0;
    t->edges = edges_end - t->first_edge;
    RAISE(w->most[0], t->atoms); RAISE(w->most[1], t->local); RAISE(w->most[2], t->edges);
  }
  w->tiles = count;
  int32_t *const kept = reserve(w, IDS, (ids_of_all + 1) * sizeof *kept);
  if (kept != NULL) memcpy(kept, ids, ids_of_all * sizeof *kept);
  free(first);
  return kept == NULL ? MEMORY : DONE;
}

static int64_t plan(struct workspace *w) {
  const int64_t A = w->most[0], L = w->most[1], E = w->most[2];
  tile *const tiles = w->blocks[TILES].memory;
  int64_t kept = 0;
  for (w->large = 0; w->large < 2; w->large++, kept = 0) {
    w->kept_entries = 0;
    w->scratch = fit(SCRATCH, w->large, A, L, E, w->places);
    for (int n = 0; n < ENTRIES; n++)
      if (is(n, KEPT, w->large)) w->places[n] = w->kept_entries++;
    int64_t *const places = reserve(w, PLACES, (w->tiles * w->kept_entries + 1) * sizeof *places);
    if (places == NULL) return MEMORY;
    for (int64_t t = 0; t < w->tiles; t++) {
      int64_t at[ENTRIES + 1];
      tiles[t].kept = kept;
      kept += fit(KEPT, w->large, tiles[t].atoms, tiles[t].local, tiles[t].edges, at);
      for (int n = 0; n < ENTRIES; n++)
        if (is(n, KEPT, w->large)) places[t * w->kept_entries + w->places[n]] = at[n];
    }
    if (kept <= KEPT_AT_MOST || w->large) break;
  }
  int64_t shared = 0, sums = 0, ends[EXCHANGES + 1], last[EXCHANGES + 1];
  for (int x = 0; x < EXCHANGES; x++) {
    const int64_t size = (exchanges[x][1] * w->atoms * (int64_t)sizeof(number) + 127) / 64 * 64;
    for (last[x] = STAGES - 1; places_of[x][last[x]] < 0;) last[x]--;
    w->shared_at[x] = 0; /* at the first bytes that are free in its stages */
    for (int y = 0, moved = 0; y < x; y = moved ? 0 : y + 1) {
      moved = last[y] >= exchanges[x][2] && last[x] >= exchanges[y][2] && w->shared_at[x] < ends[y] &&
              w->shared_at[y] < w->shared_at[x] + size;
      if (moved) w->shared_at[x] = ends[y];
    }
    ends[x] = w->shared_at[x] + size;
    RAISE(shared, ends[x]);
    w->sums_at[x] = 0; /* of one stage at a time */
    if (exchanges[x][0] == ADD) RAISE(sums, (exchanges[x][1] * A * (int64_t)sizeof(number) + 127) / 64 * 64);
  }
  for (int x = 0; x < EXCHANGES; x++) /* several sums of one stage lie side by side */
    for (int y = 0; y < x; y++)
      if (exchanges[x][0] == ADD && exchanges[y][0] == ADD && exchanges[x][2] == exchanges[y][2]) w->sums_at[x]++;
  int64_t beside = 1;
  for (int x = 0; x < EXCHANGES; x++) RAISE(beside, w->sums_at[x] + 1);
  for (int x = 0; x < EXCHANGES; x++) w->sums_at[x] *= sums;
  w->sums = sums * beside;
  /* inputs and outputs of a tile lie behind its scratch */
  w->inputs = w->scratch;
  w->scratch += (8 * A + 16 * E + 8 * L + (A + 6 * E) * (int64_t)sizeof(number) + 6 * 64 + 63) / 64 * 64;
  const int64_t threads = w->threads < w->tiles ? w->threads : w->tiles;
  w->round = threads == 1 ? 1 : 4 * threads < ROUND ? ROUND : 4 * threads; /* sums are added in the order of tiles all the same */
  const int64_t slots = w->tiles < w->round ? w->tiles : w->round;
  if (reserve(w, KEPT_BYTES, kept) == NULL || reserve(w, SHARED, shared) == NULL ||
      reserve(w, SUMS_BYTES, slots * w->sums) == NULL || reserve(w, SCRATCH_BYTES, threads * w->scratch) == NULL)
    return MEMORY;
  return DONE;
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

typedef struct {
  call *of;
  int64_t thread;
} worker;

static void *work(void *argument) {
  worker *const me = argument;
  for (;;) {
    const int64_t n = __atomic_fetch_add(&me->of->next, 1, __ATOMIC_RELAXED);
    if (n >= me->of->count) return NULL;
    me->of->work(me->of, n, me->thread);
  }
}

/* Calls work(of, n, thread) for all n below count. */
static void in_threads(call *of, int64_t count, void (*each)(void *, int64_t, int64_t)) {
  worker workers[MOST_THREADS];
  pthread_t threads[MOST_THREADS];
  const int64_t number_of = of->w->threads < count ? of->w->threads : count;
  int64_t running = 0;
  of->count = count;
  of->next = 0;
  of->work = each;
  for (int64_t k = 0; k < number_of; k++) workers[k] = (worker){of, k};
  for (int64_t k = 1; k < number_of; k++) {
    if (pthread_create(&threads[running], NULL, work, &workers[k])) break; /* fewer threads do the work */
    running++;
  }
  work(&workers[0]);
  while (running > 0) pthread_join(threads[--running], NULL);
}

/* ---- stages ----------------------------------------------------------------------------------------------------- */

static void move_rows(char *to, const char *from, int64_t bytes, const int32_t *ids, int64_t count, int gather) {
  for (int64_t r = 0; r < count; r++)
    if (gather) memcpy(to + r * bytes, from + ids[r] * bytes, bytes);
    else memcpy(to + ids[r] * bytes, from + r * bytes, bytes);
}

static void run_tile(void *argument, int64_t n, int64_t thread) {
  call *const of = argument;
  struct workspace *const w = of->w;
  const tile *const t = (tile *)w->blocks[TILES].memory + of->first_tile + n;
  const int64_t s = of->stage, A = t->atoms, L = t->local, E = t->edges, flag = flags[s];
  const int32_t *const ids = (int32_t *)w->blocks[IDS].memory + t->first_id;
  const int32_t *const edge = (int32_t *)w->blocks[EDGE_LISTS].memory + 3 * t->first_edge;
  const int64_t *const kept_places = (int64_t *)w->blocks[PLACES].memory + (of->first_tile + n) * w->kept_entries;
  char *const scratch = (char *)w->blocks[SCRATCH_BYTES].memory + thread * w->scratch;
  char *const shared = w->blocks[SHARED].memory, *const sums = (char *)w->blocks[SUMS_BYTES].memory + n * w->sums;
  char *at[ENTRIES + 1];
  for (int k = 0; k < ENTRIES; k++)
    at[k] = is(k, KEPT, w->large) ? (char *)w->blocks[KEPT_BYTES].memory + t->kept + kept_places[w->places[k]]
                                     : scratch + w->places[k];
  /* inputs and outputs */
  char *top = scratch + w->inputs;
#define TAKE(type, name, count) type *const name = (type *)top; top += ((count) * sizeof(type) + 63) / 64 * 64
  TAKE(int64_t, z, A);
  TAKE(int64_t, ends, 2 * E);
  TAKE(double, energies, L);
  TAKE(number, vectors, 3 * E);
  TAKE(number, factors, A);
  TAKE(number, slopes, 3 * E);
#undef TAKE
  if (flag & Z) for (int64_t r = 0; r < A; r++) z[r] = of->z[ids[r]];
  if (flag & FACTORS) for (int64_t r = 0; r < A; r++) factors[r] = of->factors == NULL ? 1 : of->factors[ids[r]];
  if (flag & ENDS) for (int64_t e = 0; e < E; e++) { ends[e] = edge[3 * e + 1]; ends[E + e] = edge[3 * e + 2]; }
  if (flag & VECTORS) for (int64_t e = 0; e < E; e++) memcpy(vectors + 3 * e, of->vectors + 3 * edge[3 * e], 3 * sizeof(number));
  for (int x = 0; x < EXCHANGES; x++) {
    const int64_t k = places_of[x][s], bytes = exchanges[x][1] * sizeof(number);
    if (k < 0 || !(is(k, SCRATCH, w->large) || is(k, SUMS, w->large))) continue;
    if (w->tiles == 1) at[k] = shared + w->shared_at[x];
    else if (exchanges[x][2] < s) move_rows(at[k], shared + w->shared_at[x], bytes, ids, exchanges[x][0] == COPY ? A : L, 1);
    else if (entries[k][7] == SUMS) at[k] = sums + w->sums_at[x];
  }
  const int64_t status = run_stage(s, of->constants, at, w->large, A, L, E, z, vectors, ends, factors, energies, slopes);
  if (status) __atomic_store_n(&of->status, status, __ATOMIC_RELAXED);
  if (flag & ENERGIES) for (int64_t r = 0; r < L; r++) of->energies[ids[r]] = energies[r];
  if (flag & SLOPES) for (int64_t e = 0; e < E; e++) memcpy(of->slopes + 3 * edge[3 * e], slopes + 3 * e, 3 * sizeof(number));
  for (int x = 0; x < EXCHANGES; x++)
    if (exchanges[x][2] == s && exchanges[x][0] == COPY && w->tiles > 1)
      move_rows(shared + w->shared_at[x], at[places_of[x][s]], exchanges[x][1] * sizeof(number), ids, L, 0);
}

/* Adds sums of tiles in their order; a thread has some columns. */
static void add_columns(void *argument, int64_t n, int64_t thread) {
  call *const of = argument;
  struct workspace *const w = of->w;
  (void)thread;
  for (int x = 0; x < EXCHANGES; x++) {
    if (exchanges[x][2] != of->stage || exchanges[x][0] != ADD) continue;
    const int64_t columns = exchanges[x][1], begin = columns * n / of->count, end = columns * (n + 1) / of->count;
    number *const shared = (number *)((char *)w->blocks[SHARED].memory + w->shared_at[x]);
    for (int64_t k = 0; k < of->round; k++) {
      const tile *const t = (tile *)w->blocks[TILES].memory + of->first_tile + k;
      const int32_t *const ids = (int32_t *)w->blocks[IDS].memory + t->first_id;
      const number *const sums = (number *)((char *)w->blocks[SUMS_BYTES].memory + k * w->sums + w->sums_at[x]);
      for (int64_t r = 0; r < t->atoms; r++)
        for (int64_t c = begin; c < end; c++) shared[ids[r] * columns + c] += sums[r * columns + c];
    }
  }
}

static int64_t run_all_tiles(call *of) {
  struct workspace *const w = of->w;
  int adds = 0;
  for (int x = 0; x < EXCHANGES; x++) {
    if (exchanges[x][2] != of->stage || exchanges[x][0] != ADD || w->tiles == 1) continue;
    adds = 1;
    memset((char *)w->blocks[SHARED].memory + w->shared_at[x], 0, exchanges[x][1] * w->atoms * sizeof(number));
  }
  for (of->first_tile = 0; of->first_tile < w->tiles && !of->status; of->first_tile += w->round) {
    const int64_t count = w->tiles - of->first_tile < w->round ? w->tiles - of->first_tile : w->round;
    in_threads(of, count, run_tile);
    of->round = count;
    if (adds && !of->status) in_threads(of, w->threads, add_columns);
  }
  return of->status;
}

/* ---- what eqlayers.h calls -------------------------------------------------------------------------------------- */

#define PUBLIC __attribute__((visibility("default")))
/* Whether the facts of a file are those of its program. */
PUBLIC int64_t program_fits(int64_t constants, int64_t bytes) { return constants == CONSTANTS && bytes == sizeof(number); }

PUBLIC int64_t program_stages(void) { return DIVIDED ? STAGES : 0; }

PUBLIC int64_t program_exchange(int64_t stage, int64_t *columns, int *gradients) {
  for (int x = 0; x < EXCHANGES; x++)
    if (exchanges[x][3] == stage) { *columns = exchanges[x][1]; *gradients = exchanges[x][4]; return exchanges[x][0]; }
  return NOTHING;
}

PUBLIC struct workspace *program_workspace(int64_t threads) {
  struct workspace *const w = calloc(1, sizeof *w);
  if (w != NULL) w->threads = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
  return w;
}

PUBLIC void program_free(struct workspace *w) {
  for (int n = 0; n < BLOCKS; n++) free(w->blocks[n].memory);
  free(w);
}

PUBLIC int64_t program_bytes(const struct workspace *w) {
  int64_t bytes = sizeof *w;
  for (int n = 0; n < BLOCKS; n++) bytes += w->blocks[n].size;
  return bytes;
}

/* Runs stages first to last. Stage 0 makes the tiles. */
PUBLIC int64_t program_run(struct workspace *w, const char *constants, int64_t first, int64_t last, int64_t local,
                           int64_t atoms, int64_t edges, const int64_t *z, const void *vectors, const int64_t *ends,
                           const void *factors, double *energies, void *slopes, void **rows) {
  const int64_t expected = w->next;
  w->next = 0;
  if (first == 0) {
    w->local = local; w->atoms = atoms; w->edges = edges;
    int64_t status = make_tiles(w, local, atoms, edges, ends);
    if (!status) status = plan(w);
    if (status) return status;
  } else if (first != expected || local != w->local || atoms != w->atoms || edges != w->edges) return STAGE;
  call of = {w, constants, z, ends, vectors, factors, energies, slopes, 0, 0, 0, 0, 0, 0, NULL};
  for (of.stage = first; of.stage <= last; of.stage++) {
    const int64_t status = run_all_tiles(&of);
    if (status) return status;
  }
  if (rows != NULL) {
    *rows = NULL;
    for (int x = 0; x < EXCHANGES; x++)
      if (exchanges[x][3] == last) *rows = (char *)w->blocks[SHARED].memory + w->shared_at[x];
  }
  w->next = last + 1;
  return DONE;
}
