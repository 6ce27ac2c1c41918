// sbatch prints the number of the job that it has made, which later arrays need for their
// dependencies: the arrays go one after the other, and jobs.json is written again after each, so
// that it names all that there is whenever this ends.
#include "muster/tasks/slurm/submit.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/rank_env.h"
#include "muster/base/text_of.h"
#include "muster/supervise/child.h"

namespace muster {

using nlohmann::ordered_json;

namespace {

constexpr size_t kMaxSaid = 4096;

struct SbatchEnd {
  int status = 0;  // as the kernel tells it
  std::string out{};
  std::string err{};
};

// A file in memory takes what sbatch prints without anybody to read it meanwhile.
Fd memory_for(const char* name) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd.valid())
    fail_errno("cannot make a file in memory", errno);
  return fd;
}

// The text that sbatch printed, as far as it is worth showing.
std::string said_in(const Fd& fd) {
  std::string text(kMaxSaid, '\0');
  const ssize_t n = ::pread(fd.get(), text.data(), text.size(), 0);
  text.resize(std::max<ssize_t>(0, n));
  return std::string(trim(text));
}

// sbatch has the environment of this process, as a user's shell would give it.
SbatchEnd run_sbatch(const Strings& argv) {
  const Fd out = memory_for("sbatch-out");
  const Fd err = memory_for("sbatch-err");
  const Child child = spawn_child({.argv = argv,
                                   .environment = own_environment(),
                                   .stdout_fd = out.get(),
                                   .stderr_fd = err.get()});
  SbatchEnd end;
  while (::waitpid(child.pid, &end.status, 0) < 0) {
    if (errno != EINTR)
      fail_errno("cannot wait for sbatch", errno);
  }
  end.out = said_in(out);
  end.err = said_in(err);
  return end;
}

// The number in "123" or "123;cluster"; empty when sbatch said something else.
std::string job_id_of(const std::string& said) {
  const auto id = said.substr(0, said.find_first_of(";\n"));
  const bool is_number = id.find_first_not_of("0123456789") == npos;
  return is_number ? id : "";
}

// Jobs that were submitted before stay, and are named.
[[noreturn]] void fail_submit(const SbatchEnd& end, const Strings& submitted) {
  auto message = cat("sbatch: expected the number of a job, got ");
  if (WIFEXITED(end.status) && WEXITSTATUS(end.status) != 0)
    message += cat("exit code ", WEXITSTATUS(end.status), " ");
  message += in_quotes(printable(text_or(end.err, end.out)));
  if (!submitted.empty())
    message += cat("; submitted before and still there: scancel ", join(submitted, " "));
  throw Error(ErrorCode::io, message);
}

// Which job has which tasks, by the index of its array.
std::string jobs_json(const SlurmPlan& plan, const Tasks& tasks, const Strings& job_ids) {
  ordered_json jobs = ordered_json::array();
  for (const size_t i : indices_of(job_ids)) {
    ordered_json elements = ordered_json::object();
    for (const size_t k : indices_of(plan.arrays[i].tasks))
      elements[cat(plan.arrays[i].indices[k])] = tasks[plan.arrays[i].tasks[k]].name;
    jobs.push_back({{"job", job_ids[i]}, {"tasks", std::move(elements)}});
  }
  const ordered_json document = {{"schema", "muster.slurm/1"}, {"jobs", std::move(jobs)}};
  return document.dump(2) + "\n";
}

}  // namespace

Strings sbatch_argv(const SlurmArray& array, const SlurmOptions& options, const Strings& job_ids) {
  Strings argv = options.sbatch;
  append_all(argv, array.arguments);
  const auto dependency = dependency_argument(array, job_ids);
  // The second flag ends a job after one that failed, which would be pending for ever.
  if (!dependency.empty())
    argv.insert(argv.end(), {dependency, "--kill-on-invalid-dep=yes"});
  argv.push_back(array.script_path);
  return argv;
}

Strings submit_slurm(const SlurmPlan& plan, const Tasks& tasks, const SlurmOptions& options) {
  const auto folder = options.run_dir + "/slurm";
  std::error_code error;
  for (const std::string& path : {folder, options.run_dir + "/logs"}) {
    std::filesystem::create_directories(path, error);
    if (error)
      fail_errno(error.value(), "cannot make the folder ", printable(path));
  }
  for (const SlurmArray& array : plan.arrays) {
    write_file(array.elements_path, array.elements);
    write_file(array.script_path, array.script);
  }
  Strings job_ids;
  for (const SlurmArray& array : plan.arrays) {
    const SbatchEnd end = run_sbatch(sbatch_argv(array, options, job_ids));
    const auto id = job_id_of(end.out);
    if (end.status != 0 || id.empty())
      fail_submit(end, job_ids);
    job_ids.push_back(id);
    write_file(folder + "/jobs.json", jobs_json(plan, tasks, job_ids));
  }
  return job_ids;
}

}  // namespace muster
