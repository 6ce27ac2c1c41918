#include "muster/device/readers/nvidia_smi_topo.h"

#include <algorithm>
#include <map>
#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/links.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/readers/gpu_models.h"

namespace muster {
namespace {

constexpr size_t kMaxLine = 1 << 16;
constexpr size_t kMaxLines = 1 << 16;

struct Cell {
  std::string text;
  size_t at;  // column in its line, from 0
};

// Without the escape sequences that underline nvidia-smi's header.
std::string without_escapes(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i = std::min(line.find_first_not_of("0123456789;", i + 2), line.size());
    } else if (line[i] != '\r') {
      out += line[i];
    }
  }
  return out;
}

std::vector<Cell> words_of(const std::string& line) {
  std::vector<Cell> words;
  for (size_t at = line.find_first_not_of(" \t"); at != std::string::npos;) {
    const size_t end = std::min(line.find_first_of(" \t", at), line.size());
    words.push_back({line.substr(at, end - at), at});
    at = line.find_first_not_of(" \t", end);
  }
  return words;
}

std::optional<int> gpu_number(std::string_view text) {
  if (!text.starts_with("GPU") || text.size() < 4 || text[3] == '-')
    return std::nullopt;
  const auto number = parse_int(text.substr(3));
  if (!number || *number < 0 || *number > 65535)
    return std::nullopt;
  return static_cast<int>(*number);
}

bool is_row(const std::vector<Cell>& words) {
  return words.size() >= 2 && gpu_number(words[0].text) && parse_link(words[1].text).has_value();
}

// "SOC" is what drivers before 390 called SYS.
std::optional<Link> link_of(const std::string& text) {
  if (text == "SOC")
    return Link{LinkKind::sys, 0};
  if (text == "N/A")
    return Link{};
  return parse_link(text);
}

class TopoReader {
 public:
  TopoReader(const std::string& text, const std::string& source) : source_(source) {
    host_.name = host_name_of(source);
    cut(text);
  }

  Host read() {
    read_header();
    for (; line_ < lines_.size() && matrix_.size() < columns_.size(); ++line_) {
      const std::vector<Cell> words = words_of(lines_[line_]);
      if (!words.empty())
        read_row(words);
    }
    if (matrix_.size() < columns_.size())
      fail(0, cat(columns_.size(), " rows"), cat(matrix_.size()));
    read_names();
    read_links();
    if (!cpus_.empty())
      host_.num_cores = static_cast<int>(cpus_.size());
    complete_host(host_, cat("inventory ", source_));
    return std::move(host_);
  }

 private:
  [[noreturn]] void fail(size_t column, const std::string& expected, std::string_view got) const {
    throw Error(ErrorCode::invalid_argument,
                cat("inventory ",
                    source_,
                    ": expected ",
                    expected,
                    ", got ",
                    clean_text(got),
                    " (line ",
                    std::min(line_, lines_.size() - 1) + 1,
                    ", column ",
                    column + 1,
                    ")"));
  }

  void cut(const std::string& text) {
    lines_.emplace_back();  // errors want one
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

  // The line above the first row: devices, then the names of the last columns.
  void read_header() {
    while (line_ < lines_.size() && !is_row(words_of(lines_[line_])))
      ++line_;
    if (line_ == lines_.size() || line_ == 0)
      fail(0, "a header and rows as of nvidia-smi topo -m", "none");
    for (--line_; line_ > 0 && words_of(lines_[line_]).empty();)
      --line_;
    const std::string& header = lines_[line_];
    const std::vector<Cell> words = words_of(header);
    size_t word = 0;
    for (; word < words.size() && words[word].text != "CPU"; ++word)
      columns_.push_back(words[word].text);
    for (; word < words.size(); ++word) {
      const bool next =
          words[word].text == "CPU" || words[word].text == "NUMA" || words[word].text == "GPU";
      if (next && (word == 0 || words[word - 1].text != "GPU"))
        tail_.push_back(words[word].at);
    }
    while (num_gpus_ < columns_.size() && gpu_number(columns_[num_gpus_]))
      ++num_gpus_;
    if (num_gpus_ == 0)
      fail(0, "columns GPU0, GPU1 …", header);
    if (columns_.size() > kMaxHostDevices)
      fail(0, cat("at most ", kMaxHostDevices, " columns"), "more");
    ++line_;
  }

  void read_row(const std::vector<Cell>& words) {
    const size_t row = matrix_.size();
    if (words[0].text != columns_[row])
      fail(words[0].at, cat("the row of ", columns_[row]), words[0].text);
    if (words.size() <= columns_.size()) {
      fail(words.back().at,
           cat(columns_.size(), " links after ", columns_[row]),
           cat(words.size() - 1));
    }
    std::vector<Link> links;
    for (size_t i = 1; i <= columns_.size(); ++i) {
      const auto link = link_of(words[i].text);
      if (!link || (link->kind == LinkKind::self) != (i - 1 == row)) {
        fail(words[i].at, i - 1 == row ? "X" : "a link as NV4, PIX or SYS", words[i].text);
      }
      if (i - 1 < row && matrix_[i - 1][row] != *link) {
        fail(words[i].at,
             cat(to_string(matrix_[i - 1][row]), ", as in the row of ", columns_[i - 1]),
             words[i].text);
      }
      links.push_back(*link);
    }
    matrix_.push_back(std::move(links));
    if (row < num_gpus_)
      read_gpu(row, words);
  }

  void read_gpu(size_t row, const std::vector<Cell>& words) {
    Gpu gpu;
    gpu.index.value = *gpu_number(columns_[row]);
    const std::vector<Cell> rest = tail_cells(words);
    if (!rest.empty() && !rest[0].text.empty() && rest[0].text != "N/A") {
      try {
        const std::vector<int> cpus = parse_cpu_list(rest[0].text);
        cpus_.insert(cpus.begin(), cpus.end());
        gpu.near_cpus = to_cpu_list(cpus);
      } catch (const Error&) {
        fail(rest[0].at, "CPUs as in 0-31,64-95", rest[0].text);
      }
    }
    if (rest.size() > 1 && !rest[1].text.empty() && rest[1].text != "N/A" && rest[1].text != "-1") {
      // A GPU that has memory of its own in the system's address space is near several nodes; the
      // first has CPUs.
      const std::string& text = rest[1].text;
      const auto node = parse_int(text.substr(0, text.find_first_of(",-")));
      if (!node || *node < 0 || *node > 65535)
        fail(rest[1].at, "a NUMA node", text);
      gpu.numa_node = static_cast<int>(*node);
    }
    host_.gpus.push_back(std::move(gpu));
  }

  // The cells after the links, by column: "CPU Affinity", "NUMA Affinity", "GPU NUMA ID". Any may
  // be empty.
  std::vector<Cell> tail_cells(const std::vector<Cell>& words) const {
    std::vector<Cell> cells(tail_.size(), Cell{{}, 0});
    const std::string& line = lines_[line_];
    const size_t from = words[columns_.size()].at;
    if (line.find('\t', from) != std::string::npos) {
      const std::vector<std::string> pieces = split(std::string_view(line).substr(from), '\t');
      for (size_t i = 0; i < cells.size() && i + 1 < pieces.size(); ++i) {
        cells[i] = {std::string(trim(pieces[i + 1])), from};
      }
      return cells;
    }
    const size_t count = words.size() - columns_.size() - 1;
    for (size_t i = 0; i < count; ++i) {
      const Cell& word = words[columns_.size() + 1 + i];
      size_t column = i;
      if (count < tail_.size()) {  // some are empty: the place tells which
        for (column = 0; column + 1 < tail_.size() && tail_[column + 1] <= word.at;)
          ++column;
      }
      if (column < cells.size())
        cells[column] = word;
    }
    return cells;
  }

  // Around the matrix: `nvidia-smi -L`, and the legend that names the NICs ("NIC0: mlx5_0").
  void read_names() {
    std::map<std::string, std::string> nics;
    Gpu* gpu = nullptr;
    for (line_ = 0; line_ < lines_.size(); ++line_) {
      const std::string_view line = trim(lines_[line_]);
      const size_t colon = line.find(':');
      if (line.starts_with("NIC") && colon != std::string_view::npos) {
        nics[std::string(line.substr(0, colon))] = clean_text(line.substr(colon + 1));
      } else if (line.starts_with("GPU ") && colon != std::string_view::npos) {
        gpu = read_listed_gpu(line, colon);
      } else if (line.starts_with("MIG ") && gpu != nullptr) {
        read_listed_mig(line, *gpu);
      }
    }
    for (size_t i = num_gpus_; i < columns_.size(); ++i) {
      const auto found = nics.find(columns_[i]);
      host_.nics.push_back({.name = found == nics.end() ? clean_text(columns_[i]) : found->second});
    }
  }

  // "GPU-…" of "(UUID: GPU-…)".
  std::string uuid_in(std::string_view line, const char* prefix) const {
    const size_t from = line.find("(UUID: ");
    std::string uuid = from == std::string_view::npos
                           ? ""
                           : clean_text(line.substr(from + 7, line.find(')', from) - from - 7));
    if (!uuid.starts_with(prefix))
      fail(0, cat("(UUID: ", prefix, "…)"), line);
    return uuid;
  }

  // "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-…)", of nvidia-smi -L, or without the UUID, of
  // PyTorch's collect_env.
  Gpu* read_listed_gpu(std::string_view line, size_t colon) {
    const auto index = parse_int(line.substr(4, colon - 4));
    if (!index)
      return nullptr;
    const auto gpu = std::find_if(host_.gpus.begin(), host_.gpus.end(), [&](const Gpu& candidate) {
      return candidate.index.value == *index;
    });
    if (gpu == host_.gpus.end())
      fail(0, "a GPU that has a row in the matrix", line);
    const std::string product =
        clean_text(line.substr(colon + 1, std::min(line.find(" (UUID"), line.size()) - colon - 1));
    if (const GpuModel* const model = find_gpu_model_by_product(product))
      apply_model(*gpu, *model);
    gpu->model = product;
    gpu->compute_capability = compute_capability_of(product);
    if (line.find("(UUID") != std::string_view::npos)
      gpu->uuid.value = uuid_in(line, "GPU-");
    return &*gpu;
  }

  // "MIG 3g.20gb     Device  0: (UUID: MIG-…)"
  void read_listed_mig(std::string_view line, Gpu& gpu) const {
    const std::vector<Cell> words = words_of(std::string(line));
    if (words.size() < 2)
      return;
    MigInstance instance{.uuid = {uuid_in(line, "MIG-")}, .profile = clean_text(words[1].text)};
    const size_t dot = instance.profile.rfind('.');
    if (dot != std::string::npos && instance.profile.ends_with("gb")) {
      const auto gib = parse_int(
          std::string_view(instance.profile).substr(dot + 1, instance.profile.size() - dot - 3));
      if (gib && *gib > 0 && *gib < 65536)
        instance.memory_total_bytes = static_cast<uint64_t>(*gib) << 30U;
    }
    if (gpu.mig.size() == kMaxHostDevices)
      fail(0, "fewer MIG devices", "more");
    gpu.mig_enabled = true;
    gpu.mig.push_back(std::move(instance));
  }

  void read_links() {
    for (size_t i = 0; i < num_gpus_; ++i) {
      const auto middle = matrix_[i].begin() + static_cast<ptrdiff_t>(num_gpus_);
      host_.gpu_links.emplace_back(matrix_[i].begin(), middle);
      if (!host_.nics.empty())
        host_.nic_links.emplace_back(middle, matrix_[i].end());
    }
  }

  const std::string& source_;
  std::vector<std::string> lines_;
  size_t line_ = 0;
  std::vector<std::string> columns_;  // "GPU0", …, "NIC0", …
  size_t num_gpus_ = 0;
  std::vector<size_t> tail_;  // where the columns after those begin
  std::vector<std::vector<Link>> matrix_;
  std::set<int> cpus_;  // near any GPU
  Host host_;
};

}  // namespace

bool is_nvidia_smi_topo(std::string_view text) {
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size());
    const std::string_view line = text.substr(from, std::min(to - from, kMaxLine));
    if (line.find("GPU") != std::string_view::npos && is_row(words_of(without_escapes(line))))
      return true;
    from = to + 1;
  }
  return false;
}

Host nvidia_smi_topo_host(const std::string& text, const std::string& source) {
  return TopoReader(text, source).read();
}

}  // namespace muster
