// A program that initialises MPI itself and makes a group of muster's beside: muster neither
// initialises nor finalises it.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <torch/torch.h>

#include <iostream>

#include "muster/comm/init.h"

int main(int argc, char** argv) try {
  int level = 0, size = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, argc > 1 ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  {
    auto group = muster::init_process_group(muster::InitOptions{.backend = "mpi"});
    auto ones = torch::ones({3});
    group.all_reduce(ones);
    if (ones[0].item<float>() != static_cast<float>(size))
      throw std::runtime_error("a wrong sum");
    group.shutdown();
  }
  int sum = 0;
  MPI_Allreduce(&size, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);  // still the program's
  MPI_Finalize();
  if (rank == 0 && sum == size * size)
    std::cout << "mpi_own: holds" << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::cerr << "mpi_own: " << error.what() << std::endl;
  MPI_Finalize();
  return 1;
}
