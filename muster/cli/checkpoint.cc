// `muster checkpoint` reads manifests and the heads of files, without LibTorch. Files may come from
// anywhere: their names and errors are made harmless before they are printed (checkpoint_paths.h).
#include "muster/base/contains.h"
#include "muster/checkpoint/files/path_facts.h"
#include "muster/cli/commands.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/mapped.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/base/usage.h"
#include "muster/checkpoint/files/directory.h"
#include "muster/checkpoint/files/safetensors_file.h"
#include "muster/checkpoint/files/view.h"
#include "muster/checkpoint/files/weight_files.h"
#include "muster/cli/checkpoint_paths.h"
#include "muster/cli/checkpoint_text.h"
#include "muster/cli/reading_line.h"

namespace muster {

namespace {

constexpr auto kCheckpointExamples = R"(Examples:
  muster checkpoint ls runs/latest                      the checkpoints of the newest run
  muster checkpoint show runs/latest/checkpoints/step-460
  muster checkpoint verify runs/latest                  reads every file, and compares checksums
  muster checkpoint diff a/step-460 b/step-460          which tensors differ, and how much
  muster checkpoint export runs/latest/checkpoints/step-460 net.safetensors
`muster help checkpoint COMMAND` tells more.
)";

constexpr auto kLsExamples = R"(Examples:
  muster checkpoint ls                        of this folder
  muster checkpoint ls runs/latest            of a run
  muster checkpoint ls --json checkpoints/    the same for programs
The first whole one is what a resume takes. Those of a branch that the training has left by going back to an
older step are abandoned, and come last.
)";

constexpr auto kShowExamples = R"(Examples:
  muster checkpoint show checkpoints/step-460
  muster checkpoint show checkpoints/step-460 --file model    the model's tensors alone
  muster checkpoint show model.safetensors                    a file from elsewhere
  muster checkpoint show hub/gpt2                             a hub's folder, all files of its index
)";

constexpr auto kVerifyExamples = R"(Examples:
  muster checkpoint verify checkpoints/step-460
  muster checkpoint verify runs/latest        every checkpoint of a run
  muster checkpoint verify a.safetensors      has no checksum: its head is compared with its size
  muster checkpoint verify hub/gpt2           a hub's folder: also the tensors of its index
Exit code 1: something is damaged.
)";

// The flags of ls, show and verify, of which each uses some.
struct CheckpointFlags {
  std::string folder = ".";
  Strings paths;
  std::string file;
  bool json = false;
};

// `ls`. A folder that is itself a checkpoint, or a hub's, is likely to be meant for `show`.
void show_list(const CheckpointFlags& flags) {
  if (exists_at(cat(flags.folder, "/", kManifestFile))) {
    fail_usage("expected a folder of checkpoints, got '",
               shown_text(flags.folder),
               "', which is one; see `muster checkpoint show`");
  }
  const auto directory = checkpoints_folder(flags.folder);
  const auto listed = read_files([&] { return list_with_state(directory); });
  if (listed.empty() && has_plain_weights(flags.folder)) {
    fail_usage("expected a folder of checkpoints, got '",
               shown_text(flags.folder),
               "', which holds a model's weights without a manifest; see `muster checkpoint show`");
  }
  write_all(STDOUT_FILENO,
            flags.json ? listed_json(listed, directory) : listed_text(listed, directory));
}

// `show`. The tensors' heads are read before anything is printed, so that an error comes alone.
void show_one(const CheckpointFlags& flags) {
  const auto& path = flags.paths.at(0);
  expect_there(path);
  const CheckpointView view = read_files([&] { return view_checkpoint(path); });
  auto wanted = tensor_sets(view);
  if (!flags.file.empty())
    wanted = {chosen_set(view, flags.file)};
  const std::string text = read_files([&] {
    const auto shown =
        mapped(wanted, [](const TensorSet& set) { return ShownTensors{set, set.open()}; });
    return flags.json ? view_json(view, shown) : view_text(view, shown);
  });
  write_all(STDOUT_FILENO, text);
}

// Returns the paths of single checkpoints and files. A folder of checkpoints, or a run's, stands
// for all that are in it.
Strings each_checkpoint(const Strings& paths) {
  Strings all;
  for (const auto& path : paths) {
    expect_there(path);
    const bool is_checkpoint = exists_at(cat(path, "/", kManifestFile));
    std::vector<StepFolder> inside;
    if (is_folder(path) && !is_checkpoint)
      inside = list_checkpoints(checkpoints_folder(path));
    if (inside.empty())
      all.push_back(path);
    append_mapped(all, inside, &StepFolder::path);
  }
  return all;
}

// Returns the exit code.
int verify_all(const CheckpointFlags& flags) {
  VerifiedFiles rows;
  {
    // The line is gone before the table is printed.
    ReadingLine line;
    const auto on_bytes = [&](const std::string& file, size_t bytes) {
      line.add(file, bytes);
    };
    rows = concatenated(each_checkpoint(flags.paths),
                        [&](const std::string& path) { return verify_files(path, on_bytes); });
  }
  write_all(STDOUT_FILENO, flags.json ? verified_json(rows) : verified_text(rows));
  const auto is_whole = [](const VerifiedFile& row) {
    return row.problem.empty();
  };
  return all_of(rows, is_whole) ? 0 : 1;
}

// A callback runs after add_checkpoint() has returned, and keeps the flags alive.
using SharedFlags = std::shared_ptr<CheckpointFlags>;

void add_ls(CLI::App& app, const SharedFlags& flags) {
  auto* const command =
      app.add_subcommand("ls", "List the checkpoints of a folder or run, the last saved first")
          ->footer(kLsExamples);
  command->add_option("FOLDER", flags->folder, "A run's folder, or a folder of checkpoints [.]");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags] { show_list(*flags); });
}

void add_show(CLI::App& app, const SharedFlags& flags) {
  auto* const command =
      app.add_subcommand("show", "Show what a checkpoint or a safetensors file holds")
          ->footer(kShowExamples);
  command->add_option("PATH", flags->paths, "A checkpoint's folder, a hub's, or a safetensors file")
      ->required()
      ->expected(1);
  command
      ->add_option(
          "--file", flags->file, "Show the tensors of this file only: model, optim or parts [all]")
      ->type_name("NAME");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags] { show_one(*flags); });
}

void add_verify(CLI::App& app, const SharedFlags& flags, int* exit_code) {
  auto* const command =
      app.add_subcommand("verify", "Read every file, and compare its checksum where it has one")
          ->footer(kVerifyExamples);
  command
      ->add_option("PATH",
                   flags->paths,
                   "Checkpoints' folders, folders of them, hubs' folders, or safetensors files")
      ->required();
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, exit_code] { *exit_code = verify_all(*flags); });
}

}  // namespace

void add_checkpoint(CLI::App& app, int* exit_code) {
  auto* const command =
      app.add_subcommand("checkpoint", "Look at checkpoints and safetensors files")
          ->footer(kCheckpointExamples);
  command->require_subcommand(1);
  const auto flags = std::make_shared<CheckpointFlags>();
  add_ls(*command, flags);
  add_show(*command, flags);
  add_verify(*command, flags, exit_code);
  add_checkpoint_diff(*command, exit_code);
  add_checkpoint_export(*command);
}

}  // namespace muster
