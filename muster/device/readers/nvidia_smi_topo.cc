// The matrix is found by its rows, which begin with a GPU's name and a link; the line of titles is
// the one above the first of them. Cells behind the links are told apart by tabs or, where somebody
// has made blanks of them, by their columns. Names and UUIDs may stand anywhere around the matrix.
#include "muster/device/readers/nvidia_smi_topo.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/links.h"
#include "muster/device/numbers.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/readers/gpu_models.h"

namespace muster {
namespace {

constexpr size_t kMaxLine = 1 << 16;
constexpr size_t kMaxLines = 1 << 16;

struct Cell {
  std::string text{};
  size_t at = 0;  // column in its line, from 0

  bool is_told() const { return !text.empty() && text != "N/A"; }
};
using Cells = std::vector<Cell>;

// Returns the line without the escape sequences that underline nvidia-smi's header.
std::string without_escapes(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line.substr(i).starts_with("\x1b[")) {
      i = std::min(line.find_first_not_of("0123456789;", i + 2), line.size());
    } else if (line[i] != '\r') {
      out += line[i];
    }
  }
  return out;
}

// Returns the words of a line with their places.
Cells cells_of(const std::string& line) {
  return mapped(words_of(line), [&](std::string_view word) {
    return Cell{std::string(word), static_cast<size_t>(word.data() - line.data())};
  });
}

// "GPU-" begins a UUID and is no number.
std::optional<int> gpu_number(std::string_view text) {
  if (!text.starts_with("GPU") || text.starts_with("GPU-"))
    return std::nullopt;
  return parse_number(text.substr(3), 0, kMaxNumber);
}

bool is_gpu(std::string_view text) {
  return gpu_number(text).has_value();
}

bool is_row(const Cells& words) {
  return words.size() >= 2 && is_gpu(words[0].text) && parse_link(words[1].text);
}

// "SOC" is what drivers before 390 called SYS.
std::optional<Link> link_of(const std::string& text) {
  if (text == "SOC")
    return Link{LinkKind::sys, 0};
  if (text == "N/A")
    return Link{};
  return parse_link(text);
}

// Reads the text line by line; `line_` is the one that errors name.
class TopoReader {
 public:
  TopoReader(const std::string& text, const std::string& source) : source_(source) {
    host_.name = host_name_of(source);
    cut(text);
  }

  Host read() {
    read_header();
    for (; line_ < lines_.size() && matrix_.size() < columns_.size(); ++line_) {
      const Cells words = cells_of(lines_[line_]);
      if (!words.empty())
        read_row(words);
    }
    if (matrix_.size() < columns_.size())
      fail(0, cat(columns_.size(), " rows"), cat(matrix_.size()));
    expect_no_other();
    read_names();
    read_links();
    if (!cpus_.empty())
      host_.num_cores = int_size(cpus_);
    complete_host(host_, cat("inventory ", source_));
    return std::move(host_);
  }

 private:
  [[noreturn]] void fail(size_t column, const std::string& expected, std::string_view got) const {
    refuse_inventory(source_, expected, got, std::min(line_, lines_.size() - 1) + 1, column + 1);
  }

  // Cuts the text into lines. Errors need a line to name, so there is one from the start.
  void cut(const std::string& text) {
    lines_.emplace_back();
    for (size_t from = 0; from <= text.size(); ++line_) {
      const size_t to = std::min(text.find('\n', from), text.size());
      if (to - from > kMaxLine)
        fail(0, cat("lines up to ", kMaxLine, " bytes"), cat(to - from));
      if (line_ == kMaxLines)
        fail(0, cat("at most ", kMaxLines, " lines"), "more");
      if (line_ > 0)
        lines_.emplace_back();
      lines_.back() = without_escapes(std::string_view(text).substr(from, to - from));
      from = to + 1;
    }
    line_ = 0;
  }

  // The header is the line above the first row, blank ones aside.
  void find_header() {
    const auto row =
        std::ranges::find_if(lines_, [](const auto& line) { return is_row(cells_of(line)); });
    line_ = row - lines_.begin();
    if (line_ == lines_.size() || line_ == 0)
      fail(0, "a header and rows as of nvidia-smi topo -m", "none");
    --line_;
    while (line_ > 0 && cells_of(lines_[line_]).empty())
      --line_;
  }

  // The header names the devices, then the columns behind the links: "CPU Affinity", "NUMA
  // Affinity", "GPU NUMA ID".
  void read_header() {
    find_header();
    const std::string& header = lines_[line_];
    const Cells words = cells_of(header);
    const auto tail = std::ranges::find(words, "CPU", &Cell::text);
    columns_ = mapped(std::ranges::subrange(words.begin(), tail), &Cell::text);
    std::string_view before;
    for (const Cell& word : std::ranges::subrange(tail, words.end())) {
      const bool begins = is_one_of(word.text, "CPU", "NUMA", "GPU");
      if (begins && before != "GPU")
        tail_.push_back(word.at);
      before = word.text;
    }
    num_gpus_ = std::ranges::find_if_not(columns_, is_gpu) - columns_.begin();
    if (num_gpus_ == 0)
      fail(0, "columns GPU0, GPU1 …", header);
    if (columns_.size() > kMaxHostDevices)
      fail(0, cat("at most ", kMaxHostDevices, " columns"), "more");
    ++line_;
  }

  // A row must stand where its column does, so that the matrix can be read by position.
  void read_row(const Cells& words) {
    const size_t row = matrix_.size();
    if (words[0].text != columns_[row])
      fail(words[0].at, cat("the row of ", columns_[row]), words[0].text);
    if (words.size() <= columns_.size()) {
      fail(words.back().at,
           cat(columns_.size(), " links after ", columns_[row]),
           cat(words.size() - 1));
    }
    matrix_.push_back(mapped_indices(
        columns_.size(), [&](size_t column) { return read_link(words[column + 1], row, column); }));
    if (row < num_gpus_)
      read_gpu(row, words);
  }

  // A link must be what the other device's row, if it came before, says of it.
  Link read_link(const Cell& word, size_t row, size_t column) const {
    const bool is_self = column == row;
    const auto link = link_of(word.text);
    if (!link || (link->kind == LinkKind::self) != is_self)
      fail(word.at, is_self ? "X" : "a link as NV4, PIX or SYS", word.text);
    if (column < row && matrix_[column][row] != *link) {
      fail(word.at,
           cat(to_string(matrix_[column][row]), ", as in the row of ", columns_[column]),
           word.text);
    }
    return *link;
  }

  void read_gpu(size_t row, const Cells& words) {
    Gpu gpu;
    gpu.index.value = *gpu_number(columns_[row]);
    Cells rest = tail_cells(words);
    rest.resize(std::max<size_t>(rest.size(), 2));  // what the header lacks is not told
    if (rest[0].is_told())
      gpu.near_cpus = read_cpus(rest[0]);
    if (rest[1].is_told() && rest[1].text != "-1")
      gpu.numa_node = read_node(rest[1]);
    host_.gpus.push_back(std::move(gpu));
  }

  std::string read_cpus(const Cell& cell) {
    try {
      const Ints cpus = parse_cpu_list(cell.text);
      cpus_.insert(cpus.begin(), cpus.end());
      return to_cpu_list(cpus);
    } catch (const Error&) {
      fail(cell.at, "CPUs as in 0-31,64-95", cell.text);
    }
  }

  // A GPU that has memory of its own in the system's address space is near several nodes; the first
  // has CPUs.
  int read_node(const Cell& cell) const {
    const auto first = cell.text.substr(0, cell.text.find_first_of(",-"));
    const auto node = parse_number(first, 0, kMaxNumber);
    if (!node)
      fail(cell.at, "a NUMA node", cell.text);
    return *node;
  }

  // Returns the cells behind the links, one for each column of the tail. Any may be empty: with
  // tabs such a cell is there all the same, with blanks the place of the others tells.
  Cells tail_cells(const Cells& words) const {
    const std::string& line = lines_[line_];
    const size_t from = words[columns_.size()].at;
    if (line.find('\t', from) != npos) {
      Strings pieces = split(std::string_view(line).substr(from), '\t');
      pieces.resize(tail_.size() + 1);  // the first is the last link
      return mapped_indices(tail_.size(),
                            [&](size_t i) { return Cell{std::string(trim(pieces[i + 1])), from}; });
    }
    Cells cells(tail_.size());
    const auto rest = std::span(words).subspan(columns_.size() + 1);
    const bool all_told = rest.size() >= cells.size();
    for (const size_t i : indices_of(rest)) {
      const size_t column = all_told ? i : column_at(rest[i].at);
      if (column < cells.size())
        cells[column] = rest[i];
    }
    return cells;
  }

  // Returns the last column of the tail that begins at this place or before it; else the first.
  size_t column_at(size_t place) const {
    const auto behind = std::ranges::upper_bound(tail_, place);
    return std::max<size_t>(behind - tail_.begin(), 1) - 1;
  }

  // The matrix of another host, or of this one at another time, would be left out.
  void expect_no_other() {
    for (; line_ < lines_.size(); ++line_) {
      const size_t at = lines_[line_].find("CPU Affinity");
      if (at != npos)
        fail(at, "one matrix in a file (several go into a folder, a file each)", "a second one");
    }
  }

  // Around the matrix stand `nvidia-smi -L`, and the legend that names the NICs ("NIC0: mlx5_0").
  void read_names() {
    std::map<std::string, std::string> nics;
    Gpu* gpu = nullptr;
    for (line_ = 0; line_ < lines_.size(); ++line_) {
      const std::string_view line = trim(lines_[line_]);
      const size_t colon = line.find(':');
      if (line.starts_with("NIC") && colon != npos) {
        nics[std::string(line.substr(0, colon))] = clean_text(line.substr(colon + 1));
      } else if (line.starts_with("GPU ") && colon != npos) {
        gpu = read_listed_gpu(line, colon);
      } else if (line.starts_with("MIG ") && gpu != nullptr) {
        read_listed_mig(line, *gpu);
      }
    }
    for (const auto& column : columns_ | std::views::drop(num_gpus_)) {
      host_.nics.push_back({.name = find_or(nics, column, clean_text(column))});
    }
  }

  // Returns "GPU-…" of "(UUID: GPU-…)".
  std::string uuid_in(std::string_view line, const char* prefix) const {
    constexpr std::string_view kMark = "(UUID: ";
    std::string uuid;
    if (const size_t at = line.find(kMark); at != npos) {
      const std::string_view behind = line.substr(at + kMark.size());
      uuid = clean_text(behind.substr(0, behind.find(')')));
    }
    if (!uuid.starts_with(prefix))
      fail(0, cat("(UUID: ", prefix, "…)"), line);
    return uuid;
  }

  // Reads "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-…)", of nvidia-smi -L, or without the UUID, of
  // PyTorch's collect_env. Returns the GPU, or null for a line that is another.
  Gpu* read_listed_gpu(std::string_view line, size_t colon) {
    const auto index = parse_int(line.substr(4, colon - 4));
    if (!index)
      return nullptr;
    Gpu* const gpu = element_where(
        host_.gpus, [&](const Gpu& candidate) { return candidate.index.value == *index; });
    if (gpu == nullptr)
      fail(0, "a GPU that has a row in the matrix", line);
    const std::string_view behind = line.substr(colon + 1);
    const auto product = clean_text(behind.substr(0, behind.find(" (UUID")));
    if (const GpuModel* const model = find_gpu_model_by_product(product))
      apply_model(*gpu, *model);
    gpu->model = product;
    gpu->compute_capability = compute_capability_of(product);
    if (has_text(line, "(UUID"))
      gpu->uuid.value = uuid_in(line, "GPU-");
    return gpu;
  }

  // Reads "MIG 3g.20gb     Device  0: (UUID: MIG-…)"; the profile's name holds the memory.
  void read_listed_mig(std::string_view line, Gpu& gpu) const {
    const Cells words = cells_of(std::string(line));
    if (words.size() < 2)
      return;
    MigInstance instance{.uuid = {uuid_in(line, "MIG-")}, .profile = clean_text(words[1].text)};
    const std::string& profile = instance.profile;
    const size_t dot = profile.rfind('.');
    if (dot != npos && profile.ends_with("gb")) {
      const uint64_t gib =
          parse_number(profile.substr(dot + 1, profile.size() - dot - 3), 1, kMaxNumber)
              .value_or(0);
      instance.memory_total_bytes = gib << 30U;
    }
    if (gpu.mig.size() == kMaxHostDevices)
      fail(0, "fewer MIG devices", "more");
    gpu.mig_enabled = true;
    gpu.mig.push_back(std::move(instance));
  }

  // The matrix holds GPUs first, then NICs, in the order of the header.
  void read_links() {
    for (const std::vector<Link>& row : std::span(matrix_).first(num_gpus_)) {
      const auto gpus = std::span(row).first(num_gpus_);
      const auto nics = std::span(row).subspan(num_gpus_);
      host_.gpu_links.emplace_back(gpus.begin(), gpus.end());
      if (!nics.empty())
        host_.nic_links.emplace_back(nics.begin(), nics.end());
    }
  }

  const std::string& source_;
  Strings lines_;
  size_t line_ = 0;
  Strings columns_;  // "GPU0", …, "NIC0", …
  size_t num_gpus_ = 0;
  Indices tail_;  // where the columns after those begin
  LinkMatrix matrix_;
  IntSet cpus_;  // near any GPU
  Host host_;
};

}  // namespace

// Only lines with a GPU are cut into words, because the text may be anything.
bool is_nvidia_smi_topo(std::string_view text) {
  return any_of(std::views::split(text, '\n'), [](const auto& part) {
    const auto line = std::string_view(part.begin(), part.end()).substr(0, kMaxLine);
    return has_text(line, "GPU") && is_row(cells_of(without_escapes(line)));
  });
}

Host nvidia_smi_topo_host(const std::string& text, const std::string& source) {
  return TopoReader(text, source).read();
}

}  // namespace muster
