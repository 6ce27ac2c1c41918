// What the conformance suite does not ask of a backend over MPI: calls of c10d itself, and
// failures. A program of ranks: `mpi_probe CASE` under an mpirun.
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdlib>
#include <iostream>
#include <map>
#include <numeric>
#include <stdexcept>

#include "muster/base/error.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/comm/init.h"

namespace {

using muster::Error;
using muster::ErrorCode;
using muster::ProcessGroup;
using Tensors = std::vector<at::Tensor>;

void require(bool right, const std::string& what) {
  if (!right)
    throw std::runtime_error(what);
}

template <class Body>
void require_error(ErrorCode code, const std::vector<std::string>& parts, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    bool right = error.code() == code;
    for (const std::string& part : parts)
      right = right && error.message().find(part) != std::string::npos;
    require(
        right,
        muster::cat("unexpected error: ", muster::to_string(error.code()), ": ", error.message()));
    return;
  }
  throw std::runtime_error("expected an error, got none");
}

void types(ProcessGroup& group) {
  const auto n = static_cast<double>(group.size());
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    // Added as float and rounded once: of three ranks, 1 + step + step is 1 where every addition is
    // rounded.
    const double step = type == at::kHalf ? 0x1p-11 : 0x1p-8;
    auto tensor = torch::full({5}, group.rank() == 0 ? 1.0 : step).to(type);
    group.all_reduce(tensor);
    require(tensor.equal(torch::full({5}, 1 + (n - 1) * step).to(type)),
            "a half type is rounded once");
    auto mean = torch::full({5}, group.rank() + 1).to(type);
    group.all_reduce(mean, muster::ReduceOp::avg);
    require(mean.equal(torch::full({5}, (n + 1) / 2).to(type)), "the mean of a half type");
    auto rows = torch::full({group.size(), 3}, group.rank() + 1).to(type);
    auto part = torch::zeros({1, 3}).to(type);
    group.reduce_scatter(part, rows);
    require(part.equal(torch::full({1, 3}, n * (n + 1) / 2).to(type)),
            "reduce_scatter of a half type");
  }
  auto complex =
      torch::complex(torch::ones({3}), torch::full({3}, static_cast<float>(group.rank())));
  group.all_reduce(complex);
  const auto turns = static_cast<float>(n * (n - 1) / 2);
  require(complex.equal(
              torch::complex(torch::full({3}, static_cast<float>(n)), torch::full({3}, turns))),
          "complex");
  auto any = torch::zeros({2}, at::kBool);
  any[0] = group.rank() == group.size() - 1;
  group.all_reduce(any, muster::ReduceOp::max);
  require(any[0].item<bool>() && !any[1].item<bool>(), "bool");
  auto lost = torch::tensor({group.rank() == 0 ? std::nanf("") : 1.0F});
  group.all_reduce(lost, muster::ReduceOp::max);
  require(lost.isnan().item<bool>(), "NaN wins");
  require_error(ErrorCode::invalid_argument, {"Float has, got band"}, [&] {
    auto floats = torch::ones({2});
    group.all_reduce(floats, muster::ReduceOp::band);
  });
}

void lists(ProcessGroup& group) {
  const int size = group.size(), rank = group.rank();
  auto& c10d = *group.c10d();
  Tensors mine{torch::full({2}, rank)};
  std::vector<Tensors> all(1);
  for (int i = 0; i < size; ++i)
    all[0].push_back(torch::zeros({2}, at::kLong));
  c10d.allgather(all, mine)->wait();
  for (int i = 0; i < size; ++i)
    require(all[0][static_cast<size_t>(i)].equal(torch::full({2}, i)), "all_gather into a list");
  std::vector<Tensors> parts(1);
  for (int i = 0; i < size; ++i)
    parts[0].push_back(torch::full({3}, i + rank, at::kFloat));
  Tensors part{torch::zeros({3})};
  c10d.reduce_scatter(part, parts)->wait();
  require(part[0].equal(torch::full({3}, static_cast<float>(size * rank + size * (size - 1) / 2))),
          "reduce_scatter of a list");
  Tensors to, from;
  for (int i = 0; i < size; ++i) {
    to.push_back(torch::full({i + 1}, rank));
    from.push_back(torch::zeros({rank + 1}, at::kLong));
  }
  c10d.alltoall(from, to)->wait();
  for (int i = 0; i < size; ++i)
    require(from[static_cast<size_t>(i)].equal(torch::full({rank + 1}, i)), "all_to_all of lists");
}

void messages(ProcessGroup& group) {
  auto& c10d = *group.c10d();
  if (group.rank() == 0) {
    std::map<int, int> seen;
    for (int i = 1; i < group.size(); ++i) {
      Tensors got{torch::zeros({2}, at::kLong)};
      auto work = c10d.recvAnysource(got, 3);
      work->wait();
      const int source = work->sourceRank();
      ++seen[source];
      require(got[0].equal(torch::full({2}, source)), "recv from any rank");
    }
    require(std::ssize(seen) == group.size() - 1, "every rank's message came once");
    auto small = torch::zeros({2}, at::kLong);
    require_error(ErrorCode::invalid_argument,
                  {"expected 2 × Long from rank 1 with tag 4, got 3 × Long", "one type and size"},
                  [&] { group.recv(small, 1, 4); });
  } else {
    Tensors sent{torch::full({2}, group.rank())};
    c10d.send(sent, 0, 3)->wait();
    if (group.rank() == 1)
      group.send(torch::zeros({3}, at::kLong), 0, 4);
  }
  auto after = torch::ones({2});
  group.all_reduce(after);
  require(after[0].item<float>() == static_cast<float>(group.size()), "as good as before");
}

// Rank 0 waits for what nobody sends.
void late(muster::InitOptions options) {
  options.timeout = std::chrono::milliseconds(5000);  // MPI_Init_thread alone may take one second
  ProcessGroup group = muster::init_process_group(options);
  if (group.rank() > 0)
    return group.store()->wait({"over"});
  auto tensor = torch::zeros({2});
  const std::string name = muster::cat("recv from 1 (tag 0) on rank 0 of ", group.size());
  require_error(ErrorCode::timeout, {name, "5000 ms"}, [&] { group.recv(tensor, 1); });
  Tensors tensors{tensor};
  require_error(ErrorCode::timeout, {name, "this group is over"}, [&] {
    group.c10d()->allreduce(tensors)->wait();
  });
  std::cout << "mpi_probe: late holds" << std::endl;
  group.store()->set("over", "");
}

// The same of a collective with a limit of its own, which names the rank. Then the process ends,
// and does not wait for what MPI still has under way.
void limited(const muster::InitOptions& options) {
  ProcessGroup group = muster::init_process_group(options);
  auto tensor = torch::ones({2});
  group.all_reduce(tensor);
  if (group.rank() > 0)
    return group.store()->wait({"over"});
  require_error(ErrorCode::timeout, {"missing rank(s) 1", "500ms"}, [&] {
    group.with_timeout(std::chrono::milliseconds(500)).all_reduce(tensor);
  });
  require_error(ErrorCode::failed_precondition, {"given up"}, [&] { group.all_reduce(tensor); });
  std::cout << "mpi_probe: limited holds" << std::endl;
  group.store()->set("over", "");
}

// Rank 0 waits for a rank that fails: the launcher sees that it left without a word to MPI, and
// ends the job.
void dies(ProcessGroup& group) {
  auto tensor = torch::ones({2});
  group.all_reduce(tensor);
  if (group.rank() == 1)
    throw std::runtime_error("no space left");
  group.all_reduce(tensor);
}

// Beyond what goes at once.
void large(ProcessGroup& group) {
  const int64_t count = (int64_t{1} << 30) + 5;
  const auto right = [](const at::Tensor& tensor, int value, const char* what) {
    require(tensor.min().item<int>() == value && tensor.max().item<int>() == value, what);
  };
  auto tensor = torch::full({count}, group.rank() + 1, at::kChar);
  group.broadcast(tensor, 1);
  right(tensor, 2, "broadcast of more than 1 GiB");
  group.all_reduce(tensor);
  right(tensor, 2 * group.size(), "all_reduce of more than 1 GiB");
  if (group.rank() == 0)
    group.send(tensor.fill_(9), 1);
  if (group.rank() == 1)
    group.recv(tensor, 0);
  if (group.rank() < 2)
    right(tensor, 9, "a message of more than 1 GiB");
  auto part = tensor.slice(0, 0, (count + 1) / 2).fill_(group.rank());
  auto all = torch::empty({group.size(), part.size(0)}, at::kChar);
  group.all_gather(all, part);
  for (int rank = 0; rank < group.size(); ++rank)
    right(all[rank], rank, "all_gather of more than 1 GiB");
  auto sum = torch::empty({1, part.size(0)}, at::kChar);
  group.reduce_scatter(sum, all);
  right(sum, group.size() * group.rank(), "reduce_scatter of more than 1 GiB");
}

// The ranks count backwards. All of them see the same error, and nobody hangs.
void renumbered(muster::InitOptions options, const std::string& folder) {
  const auto told = muster::rank_env_from_environment();
  ::setenv("RANK", muster::cat(told->world_size - 1 - told->rank).c_str(), 1);
  ::setenv("WORLD_SIZE", muster::cat(told->world_size).c_str(), 1);
  options.init_method = "file://" + folder + "/store";
  require_error(
      ErrorCode::invalid_argument,
      {muster::cat(
           "expected rank 0 of ", told->world_size, " to be process 0 of ", told->world_size),
       muster::cat("got process ", told->world_size - 1, " of ", told->world_size)},
      [&] { muster::init_process_group(options); });
}

// Groups that go while their operations wait for MPI's thread.
void dropped(ProcessGroup& group) {
  std::vector<int> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  for (int round = 0; round < 20; ++round) {
    auto part = group.new_group(ranks);
    for (int call = 0; call < 20; ++call)
      (void)part->all_reduce_async(torch::ones({1000}));
  }
  auto sum = torch::ones({1});
  group.all_reduce(sum);
  require(sum.item<float>() == static_cast<float>(group.size()),
          "the group that stayed is as good as before");
}

// One process that no MPI launcher has started: no world of its own is made in silence. Then one
// that was, without the library.
void alone(muster::InitOptions options, const std::string& folder) {
  ::setenv("RANK", "0", 1);
  ::setenv("WORLD_SIZE", "1", 1);
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_ID"})
    ::unsetenv(name);
  options.backend = "mpi";
  options.init_method = "file://" + folder + "/first";
  require_error(ErrorCode::failed_precondition,
                {"an MPI launcher has started", "mpirun -n 4 PROGRAM"},
                [&] { muster::init_process_group(options); });
  ::setenv("PMI_RANK", "0", 1);
  ::setenv("MUSTER_MPI_LIBRARY", "/nowhere/libmuster_mpi_mpich.so", 1);
  options.init_method = "file://" + folder + "/second";
  require_error(ErrorCode::unavailable,
                {"expected a usable library", "/nowhere/libmuster_mpi_mpich.so"},
                [&] { muster::init_process_group(options); });
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string which = argc > 1 ? argv[1] : "";
  const muster::InitOptions options;
  if (which == "late" || which == "limited") {
    which == "late" ? late(options) : limited(options);
    return 0;
  }
  if (which == "renumbered") {
    renumbered(options, argv[2]);
  } else if (which == "alone") {
    alone(options, argv[2]);
  } else {
    const std::map<std::string, void (*)(ProcessGroup&)> cases = {{"types", types},
                                                                  {"lists", lists},
                                                                  {"messages", messages},
                                                                  {"dies", dies},
                                                                  {"large", large},
                                                                  {"dropped", dropped}};
    ProcessGroup group = muster::init_process_group(options);
    cases.at(which)(group);
    group.shutdown();
  }
  std::cout << "mpi_probe: " << which << " holds" << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::cerr << "mpi_probe: " << error.what() << std::endl;
  return 1;
}
