// Submits the tasks of a spec to Slurm, and is what their batch scripts call: for slurm_tasks_test.py.
//
//   slurm_example submit SPEC RUN_DIR     prints the jobs' numbers
//   slurm_example exec FILE INDEX
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "muster/base/error.h"
#include "muster/tasks/slurm_element.h"
#include "muster/tasks/slurm_submit.h"
#include "muster/tasks/spec.h"

int main(int argc, char** argv) {
  try {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    if (argc == 4 && argv[1] == std::string("exec")) muster::exec_element(argv[2], std::atoi(argv[3]));
    if (argc != 4) return 2;
    const std::vector<muster::Task> tasks = muster::read_task_file(argv[2]);
    const muster::SlurmOptions options{.run_dir = argv[3], .exec_element = {program, "exec"}};
    for (const std::string& id : muster::submit_slurm(muster::plan_slurm(tasks, options), tasks, options))
      std::puts(id.c_str());
    return 0;
  } catch (const muster::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
