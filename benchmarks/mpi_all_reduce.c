// MPI_Allreduce of floats, for all_reduce_bench.py: prints "bytes microseconds wrong" for each size, as
// `muster bench collectives` measures: inputs are rewritten by their owner before each call, all start together,
// the median over calls of the slowest rank.
//
//   mpi_all_reduce COPIED MIN MAX FACTOR SECONDS      COPIED: 0 for MPI_IN_PLACE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

int main(int argc, char** argv) {
  enum { kMost = 2000, kLeast = 5 };
  static double times[kMost];
  MPI_Init(&argc, &argv);
  if (argc != 6) MPI_Abort(MPI_COMM_WORLD, 2);
  const int copied = atoi(argv[1]);
  const long least = atol(argv[2]), most = atol(argv[3]), factor = atol(argv[4]);
  const double seconds = atof(argv[5]);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (long bytes = least; bytes <= most; bytes *= factor) {
    const long count = bytes / 4 > 0 ? bytes / 4 : 1;
    float* in = malloc((size_t)count * 4);
    float* out = copied ? malloc((size_t)count * 4) : in;
    const double begun = MPI_Wtime();
    int calls = 0, more = 1;
    long wrong = 0;
    while (more) {
      for (long i = 0; i < count; ++i) in[i] = (float)(rank + 1);
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      MPI_Allreduce(copied ? in : MPI_IN_PLACE, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      times[calls++] = (MPI_Wtime() - start) * 1e6;
      more = calls < kLeast || (calls < kMost && MPI_Wtime() - begun < seconds);
      MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    for (long i = 0; i < count; ++i) wrong += out[i] != (float)(size * (size + 1) / 2);
    qsort(times, (size_t)calls, sizeof(double), ascending);
    double mine = times[calls / 2], slowest;
    long all_wrong;
    MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%ld %.3f %ld\n", count * 4, slowest, all_wrong);
    if (out != in) free(out);
    free(in);
  }
  MPI_Finalize();
  return 0;
}
