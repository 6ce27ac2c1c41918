// Checkpoints are compared set by set: a set is the tensors of one file, or of the files that ranks
// wrote together, so that checkpoints of different numbers of ranks can be compared too.
#include "muster/base/contains.h"
#include "muster/cli/commands.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/fd.h"
#include "muster/base/json_member.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/checkpoint/files/diff.h"
#include "muster/checkpoint/files/export.h"
#include "muster/cli/checkpoint_paths.h"
#include "muster/cli/reading_line.h"
#include "muster/draw/text_table.h"

namespace muster {

using nlohmann::ordered_json;

namespace {

using Kind = TensorDifference::Kind;

// Two checkpoints of one training differ in every tensor.
constexpr size_t kShownDifferences = 100;

constexpr auto kDiffExamples = R"(Examples:
  muster checkpoint diff checkpoints/step-230 checkpoints/step-460
  muster checkpoint diff checkpoints/step-460 net.safetensors    its model with a file
Exit code 0: all tensors are equal bit for bit; 1: some are not; 2: they could not be compared.
)";

constexpr auto kExportExamples = R"(Examples:
  muster checkpoint export checkpoints/step-460 net.safetensors
  muster checkpoint export hub/gpt2 gpt2.safetensors             all files of its index as one
  muster checkpoint export checkpoints/step-460 net.safetensors --strip module. --prefix backbone.
  muster checkpoint export checkpoints/step-460 ema.safetensors --part ema    the averages of an Ema
)";

struct DiffFlags {
  std::string first;
  std::string second;
  bool json = false;
};

struct ComparedFile {
  std::string name;
  std::string only_in;  // "A" or "B": the other has no such file
  TensorsDifference difference;

  bool is_equal() const { return only_in.empty() && difference.tensors.empty(); }
  int64_t count(Kind kind) const {
    return std::ranges::count(difference.tensors, kind, &TensorDifference::kind);
  }
  std::string verdict() const {
    if (!only_in.empty())
      return cat("only in ", only_in);
    return is_equal() ? "equal" : "different";
  }
};

using ComparedFiles = std::vector<ComparedFile>;

// Both are read from beginning to end, which the line shows by the first one's path.
ComparedFile compare_pair(const TensorSet& a, const TensorSet& b, ReadingLine& line) {
  const auto on_bytes = [&](size_t bytes) {
    line.add(a.files[0].path, bytes);
  };
  TensorsDifference difference = compare_tensors(a.open(), b.open(), on_bytes);
  return {.name = a.name, .only_in = {}, .difference = std::move(difference)};
}

// Returns the set of this name; nullptr if there is none.
const TensorSet* same_set(const std::vector<TensorSet>& sets, const std::string& name) {
  return element_with(sets, name, &TensorSet::name);
}

// A file alone, which has no manifest, is compared with the model of the other.
ComparedFiles compare_views(const CheckpointView& a, const CheckpointView& b) {
  ReadingLine line;
  if (!a.has_manifest || !b.has_manifest)
    return {compare_pair(model_set(a), model_set(b), line)};
  const auto mine = tensor_sets(a), others = tensor_sets(b);
  ComparedFiles compared;
  for (const TensorSet& set : mine) {
    if (const TensorSet* const other = same_set(others, set.name)) {
      compared.push_back(compare_pair(set, *other, line));
    } else {
      compared.push_back({.name = set.name, .only_in = "A", .difference = {}});
    }
  }
  for (const TensorSet& set : others) {
    if (same_set(mine, set.name) == nullptr)
      compared.push_back({.name = set.name, .only_in = "B", .difference = {}});
  }
  return compared;
}

// The largest difference of two elements; "-" for types whose elements cannot be subtracted.
std::string shown_largest(const TensorDifference& tensor) {
  if (tensor.kind != Kind::other_values)
    return "";
  return text_of(tensor.largest, "-");
}

// A row for each set of tensors: how many are equal, and how the others differ.
std::string summary_text(const ComparedFiles& files) {
  TableRows rows;
  for (const auto& file : files) {
    rows.push_back({shown_text(file.name, 120),
                    cat(file.difference.equal),
                    cat(file.count(Kind::other_values)),
                    cat(file.count(Kind::other_kind)),
                    cat(file.count(Kind::only_in_first)),
                    cat(file.count(Kind::only_in_second)),
                    file.verdict()});
  }
  return format_table({{"file"},
                       {"equal", true},
                       {"other values", true},
                       {"other kind", true},
                       {"only in A", true},
                       {"only in B", true},
                       {"verdict"}},
                      rows);
}

// A row for each tensor that differs, up to kShownDifferences.
std::string differences_text(const ComparedFile& file) {
  const auto& tensors = file.difference.tensors;
  if (tensors.empty())
    return "";
  TableRows rows;
  for (size_t i = 0; i < std::min(tensors.size(), kShownDifferences); ++i) {
    const auto& tensor = tensors[i];
    const bool has_values = tensor.kind == Kind::other_values;
    rows.push_back({shown_text(tensor.name, 120),
                    to_string(tensor.kind),
                    tensor.first,
                    tensor.second,
                    has_values ? cat(tensor.different) : "",
                    shown_largest(tensor)});
  }
  std::string more;
  if (tensors.size() > rows.size())
    more = cat("and ", tensors.size() - rows.size(), " more; --json has all\n");
  return cat("\n",
             format_table({{cat("tensor of ", shown_text(file.name, 120))},
                           {"what"},
                           {"A"},
                           {"B"},
                           {"elements", true},
                           {"largest difference", true}},
                          rows),
             more);
}

// All tensors that differ; members that a kind of difference has no value for are left out.
std::string differences_json(const ComparedFiles& files, const DiffFlags& flags) {
  ordered_json list = ordered_json::array();
  for (const auto& file : files) {
    ordered_json tensors = ordered_json::array();
    for (const auto& tensor : file.difference.tensors) {
      ordered_json item = {{"name", tensor.name}, {"what", to_string(tensor.kind)}};
      add_unless_default(item, "a", tensor.first);
      add_unless_default(item, "b", tensor.second);
      if (tensor.kind == Kind::other_values)
        item["different_elements"] = tensor.different;
      if (tensor.largest)
        item["largest_difference"] = *tensor.largest;
      tensors.push_back(std::move(item));
    }
    ordered_json row = {{"name", file.name}, {"equal_tensors", file.difference.equal}};
    add_unless_default(row, "only_in", file.only_in);
    row["different_tensors"] = std::move(tensors);
    list.push_back(std::move(row));
  }
  const ordered_json document = {{"schema", "muster.checkpoint_diff/1"},
                                 {"a", flags.first},
                                 {"b", flags.second},
                                 {"files", list}};
  return json_text(document, 2, true) + "\n";
}

// Returns the exit code. A file that cannot be read cannot be compared, which is wrong usage here.
int show_differences(const DiffFlags& flags) {
  expect_there(flags.first);
  expect_there(flags.second);
  const auto files = read_files(
      [&] { return compare_views(view_checkpoint(flags.first), view_checkpoint(flags.second)); },
      ErrorCode::invalid_argument);
  std::string text = flags.json ? differences_json(files, flags) : summary_text(files);
  if (!flags.json) {
    text += sum_of<std::string>(files, [&](const auto& file) { return differences_text(file); });
  }
  write_all(STDOUT_FILENO, text);
  return all_of(files, &ComparedFile::is_equal) ? 0 : 1;
}

// `options` goes to export_tensors() as it is.
struct ExportFlags {
  std::string from;
  std::string to;
  std::string part;
  ExportOptions options;
};

// Compares the checksums of the files that are about to be exported. Throws: as check_content.
void expect_whole(const CheckpointView& view, const TensorSet& set, ReadingLine& line) {
  for (const ViewedFile& file : set.files) {
    const auto on_bytes = [&](size_t bytes) {
      line.add(file.path, bytes);
    };
    if (const auto* record = view.manifest.find(file.name))
      check_content(view.path, *record, on_bytes);
  }
}

// An error of the files is one of reading; an error of OUT leaves as it is.
void export_model(const ExportFlags& flags) {
  expect_there(flags.from);
  size_t count = 0;
  {
    ReadingLine line;
    const TensorSource model = read_files([&] {
      const CheckpointView view = view_checkpoint(flags.from);
      const TensorSet set = flags.part.empty() ? model_set(view) : part_set(view, flags.part);
      expect_whole(view, set, line);
      return set.open();
    });
    const auto on_bytes = [&](size_t bytes) {
      line.add(flags.to, bytes);
    };
    count = export_tensors(model, flags.to, flags.options, on_bytes);
  }
  write_all(STDOUT_FILENO, cat(plural(count, "tensor"), " in ", printable(flags.to), "\n"));
}

}  // namespace

// A is the first and B the second in everything that is printed.
void add_checkpoint_diff(CLI::App& app, int* exit_code) {
  auto* const command =
      app.add_subcommand("diff", "Compare the tensors of two checkpoints or files")
          ->footer(kDiffExamples);
  const auto flags = std::make_shared<DiffFlags>();
  command->add_option("A", flags->first, "A checkpoint's folder, a hub's, or a safetensors file")
      ->required();
  command->add_option("B", flags->second, "The checkpoint or file to compare it with")->required();
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, exit_code] { *exit_code = show_differences(*flags); });
}

void add_checkpoint_export(CLI::App& app) {
  auto* const command =
      app.add_subcommand("export", "Write the model's tensors as one safetensors file")
          ->footer(kExportExamples);
  const auto flags = std::make_shared<ExportFlags>();
  command->add_option("PATH", flags->from, "A checkpoint's folder, a hub's, or a safetensors file")
      ->required();
  command->add_option("OUT", flags->to, "The file to write")->required()->type_name("FILE");
  command
      ->add_option("--part",
                   flags->part,
                   "Write the tensors of this part in place of the model's, as ema [the model's]")
      ->type_name("NAME");
  command
      ->add_option("--strip",
                   flags->options.strip,
                   "Remove this from the beginning of every name that has it, as module. [none]")
      ->type_name("TEXT");
  command
      ->add_option(
          "--prefix", flags->options.prefix, "Put this before every name, as backbone. [none]")
      ->type_name("TEXT");
  command->add_flag("--force", flags->options.replace, "Replace OUT if it is there");
  command->callback([flags] { export_model(*flags); });
}

}  // namespace muster
