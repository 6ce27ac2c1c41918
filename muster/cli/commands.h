// The commands of `muster`, each in a file of its own. Registered by main.cc.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace CLI {
class App;
}

namespace muster {

// Each adds its subcommand to `app`; when that was asked for, it does its work and sets
// `*exit_code`, where it may be another than 0. Errors leave as Error. `args` is the command line
// after the subcommand's name.

// `muster run` starts ranks, one per device, and `muster plan` only says where they would go.
// PROGRAM and what follows are taken off `args`, so that `app` parses flags only.
void add_run(CLI::App& app, Strings& args, int* exit_code);
void add_plan(CLI::App& app, Strings& args, int* exit_code);

// Many commands over this machine's GPUs and CPUs. The exit code: 0 all tasks are done, 1 some are
// not, 124 the time limit was over, 128 + signal. Takes what follows "--" off `args`.
void add_tasks(CLI::App& app, Strings& args, int* exit_code);

// What this machine, or a captured one, has.
void add_devices(CLI::App& app);

// Hands all that follows over to muster-bench, the program that has LibTorch: this process becomes
// it.
void add_bench(CLI::App& app);

// Looks at checkpoints; the last two are commands of `checkpoint` itself.
void add_checkpoint(CLI::App& app, int* exit_code);
void add_checkpoint_diff(CLI::App& command, int* exit_code);
void add_checkpoint_export(CLI::App& command);

// The ranks of a running job, as they are now.
void add_top(CLI::App& app);

// A run's folder as a page.
void add_report(CLI::App& app);

// `muster ps` and `muster stop`: this user's running jobs on this host.
void add_ps(CLI::App& app);
void add_stop(CLI::App& app, int* exit_code);

// What `muster run --hosts` starts on each host. Not for people: its spec comes on standard input.
void add_agent(CLI::App& app, int* exit_code);

// A new secret for a job whose processes are started by hand.
void add_secret(CLI::App& app);

}  // namespace muster
