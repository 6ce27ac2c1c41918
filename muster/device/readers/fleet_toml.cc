// The text is bounded before toml++ sees it, since that nests as deep as the text wants. An entry
// becomes one host, invented or captured, and that one is copied as often as the entry counts.
#include "muster/device/readers/fleet_toml.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/toml_text.h"
#include "muster/device/links.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/readers/fleet_host.h"

namespace muster {
namespace {

using Text = toml::value<std::string>;
using Number = toml::value<int64_t>;

constexpr int kMaxGpus = 64;
constexpr int kMaxNics = 64;
constexpr int kMaxCores = 4096;
constexpr int kMaxHosts = 100'000;
constexpr int kMaxLinkCount = 1024;
constexpr uint64_t kMaxParts = 16'000'000;     // links and cores; a host counts as 100, a GPU as 20
constexpr size_t kMaxFleetLine = 1 << 16;      // bytes
constexpr int64_t kMaxFleetMarks = 2'000'000;  // of each character that ends a line or a value
constexpr size_t kMaxDots = 8;                 // of the keys in a line
constexpr size_t kMaxFleetName = 200;          // bytes

std::string model_names() {
  return join(mapped(gpu_models(), &GpuModel::name), ", ");
}

class FleetReader {
 public:
  FleetReader(const std::string& text, const std::string& source, const HostLoader& load)
      : text_(text), source_(source), load_(load) {}

  // Anything but [[host]] entries at the top is a mistake, most likely a misspelt one.
  std::vector<Host> read() {
    check_lines();
    const toml::table document = parse();
    for (const auto& [key, value] : document) {
      if (key.str() != "host")
        fail(key.source().begin, "[[host]] entries", in_quotes(key.str()));
    }
    const toml::array* const entries = document["host"].as_array();
    if (entries == nullptr)
      fail({1, 1}, "[[host]] entries", "none");
    for (const toml::node& entry : *entries)
      read_entry(value_as<toml::table>(entry, "[[host]]"));
    if (hosts_.empty())
      fail({1, 1}, "[[host]] entries", "none");
    return std::move(hosts_);
  }

 private:
  [[noreturn]] void fail(toml::source_position at,
                         const std::string& expected,
                         std::string_view got) const {
    refuse_inventory(source_, expected, got, at.line, at.column);
  }

  // The value as a T. Throws where it is another kind of value.
  template <class T>
  const T& value_as(const toml::node& value, const std::string& expected) const {
    if (const T* const typed = value.as<T>())
      return *typed;
    fail(value.source().begin, expected, "something else");
  }

  static toml::source_position position(size_t line, size_t column) {
    toml::source_position at;
    at.line = line;
    at.column = column;
    return at;
  }

  // Refuses what a fleet file does not need: what could make tables nest without end, or a message
  // without end, and letters that no name of a host or a GPU has.
  void check_lines() const {
    if (text_.size() > kMaxInventoryBytes)
      fail({1, 1}, cat("at most ", kMaxInventoryBytes >> 20U, " MiB"), "more");
    for (const char mark : {'\n', '=', ','}) {
      if (std::count(text_.begin(), text_.end(), mark) > kMaxFleetMarks) {
        fail({1, 1}, cat("at most ", kMaxFleetMarks, " lines and values"), "more");
      }
    }
    size_t line = 1;
    for (size_t from = 0; from < text_.size(); ++line) {
      const size_t to = std::min(text_.find('\n', from), text_.size());
      if (to - from > kMaxFleetLine)
        fail(position(line, 1), cat("lines up to ", kMaxFleetLine, " bytes"), cat(to - from));
      const std::string_view text = std::string_view(text_).substr(from, to - from);
      check_line(text, line);
      check_ascii(text, line);
      from = to + 1;
    }
  }

  // Dots count outside texts and comments alone: each makes a table inside the one before it.
  void check_line(std::string_view line, size_t number) const {
    for (const char* const quotes : {R"(""")", "'''"}) {
      if (const size_t at = line.find(quotes); at != npos)
        fail(position(number, at + 1), "text on one line", quotes);
    }
    constexpr auto kMarks = "\"'.#";
    size_t dots = 0;
    for (size_t at = line.find_first_of(kMarks); at < line.size();
         at = line.find_first_of(kMarks, at + 1)) {
      if (line[at] == '#')
        return;
      if (line[at] != '.') {
        at = end_of_text(line, at);
      } else if (++dots > kMaxDots) {
        fail(position(number, at + 1), "plain keys", "too many dots");
      }
    }
  }

  // Returns the place of the quote that closes the text whose opening quote is at `from`; the
  // line's end when none does. Only double quotes can be escaped.
  static size_t end_of_text(std::string_view line, size_t from) {
    const char quote = line[from];
    for (size_t i = from + 1; i < line.size(); ++i) {
      if (line[i] == quote)
        return i;
      if (line[i] == '\\' && quote == '"')
        ++i;
    }
    return line.size();
  }

  // The names of hosts and GPUs are ASCII, so whatever is not stands there by mistake.
  void check_ascii(std::string_view line, size_t number) const {
    const std::string_view before_comment = line.substr(0, line.find('#'));
    const auto other =
        std::ranges::find_if(before_comment, [](unsigned char c) { return c >= 0x80; });
    if (other != before_comment.end()) {
      const size_t column = other - before_comment.begin() + 1;
      fail(position(number, column), "ASCII outside comments", "another character");
    }
  }

  // The place of an error is given as toml++ has found it.
  toml::table parse() const {
    try {
      return parse_toml(text_);
    } catch (const TomlError& error) {
      fail(position(error.line, error.column), error.expected, error.got);
    }
  }

  // The bound on parts comes before hosts are copied, since copies are what takes memory.
  void read_entry(const toml::table& entry) {
    check_keys(entry);
    const std::string name = read_name(entry);
    const bool numbered = entry.contains("count");
    const int count = integer(entry, "count", 1, kMaxHosts).value_or(1);
    const Host host = entry.contains("from") ? captured(entry) : invent_host(described(entry));
    const uint64_t gpus = host.gpus.size() * (host.gpus.size() + host.nics.size() + 20);
    parts_ += count * (100 + gpus + host.cores.size());
    if (parts_ > kMaxParts) {
      fail(entry.source().begin,
           "a fleet that fits in a gigabyte",
           "more hosts, GPUs, links and cores");
    }
    for (int i = 0; i < count; ++i)
      add(entry, named_host(host, numbered ? cat(name, i) : name));
  }

  // Beside `from` only what does not describe a machine makes sense.
  void check_keys(const toml::table& entry) const {
    const bool from = entry.contains("from");
    StringViews known = {"name", "gpus", "nvlink", "numa", "nics", "cores", "cpu_slots", "count"};
    if (from)
      known = {"name", "from", "count", "cpu_slots"};
    for (const auto& [key, value] : entry) {
      if (contains(known, key.str()))
        continue;
      fail(key.source().begin,
           cat("a key of ", join(known, ", "), from ? " (beside from)" : ""),
           in_quotes(key.str()));
    }
  }

  // Returns the text of a key that the entry must have.
  std::string text(const toml::table& entry, const char* key) const {
    const toml::node* const value = entry.get(key);
    if (value == nullptr)
      fail(entry.source().begin, cat(key, " = \"…\""), "none");
    return value_as<Text>(*value, cat("text for ", key)).get();
  }

  // Returns nothing when the entry has no such key.
  std::optional<int> integer(const toml::table& entry, const char* key, int least, int most) const {
    const toml::node* const value = entry.get(key);
    if (value == nullptr)
      return std::nullopt;
    const auto expected = cat(key, " from ", least, " to ", most);
    const int64_t number = value_as<Number>(*value, expected).get();
    if (number < least || number > most)
      fail(value->source().begin, expected, cat(number));
    return static_cast<int>(number);
  }

  // The name must be one that --hosts and --gpus can say.
  std::string read_name(const toml::table& entry) const {
    std::string name = text(entry, "name");
    const bool is_bad = any_of(name, [](unsigned char c) {
      return std::iscntrl(c) != 0 || contains(std::string_view(" :;,!"), c);
    });
    if (name.empty() || name.size() > kMaxFleetName || is_bad) {
      fail(entry.get("name")->source().begin,
           "a host's name, without blanks and ':;,!'",
           in_quotes(name));
    }
    return name;
  }

  // Reads an entry that describes a machine, which has one core at least for each NUMA node.
  FleetHost described(const toml::table& entry) const {
    FleetHost host;
    if (entry.contains("gpus"))
      host.gpus = read_gpus(entry);
    host.numa = integer(entry, "numa", 1, 64).value_or(1);
    host.cores = integer(entry, "cores", host.numa, kMaxCores).value_or(0);
    host.cpu_slots = integer(entry, "cpu_slots", 1, kMaxCores).value_or(host.cpu_slots);
    read_nics(entry, host);
    if (entry.contains("nvlink"))
      read_nvlink(*entry.get("nvlink"), host);
    return host;
  }

  // Reads "8xH100-80GB" or "1xRTX4090, 1xRTX3090": one pointer into the table for each GPU.
  std::vector<const GpuModel*> read_gpus(const toml::table& entry) const {
    const toml::source_position at = entry.get("gpus")->source().begin;
    std::vector<const GpuModel*> gpus;
    for (const auto& piece : split(text(entry, "gpus"), ',')) {
      const std::string_view item = trim(piece);
      const size_t cross = std::min(item.find('x'), item.size());
      const auto count = parse_int(item.substr(0, cross));
      if (!count || *count < 1 || cross == item.size()) {
        fail(at, "gpus as \"8xH100-80GB\"", in_quotes(item));
      }
      const std::string_view name = trim(item.substr(cross + 1));
      const GpuModel* const model = find_gpu_model(name);
      if (model == nullptr)
        fail(at, cat("a GPU model of ", model_names()), in_quotes(name));
      if (*count > kMaxGpus - std::ssize(gpus))
        fail(at, cat("at most ", kMaxGpus, " GPUs on a host"), cat(*count));
      gpus.insert(gpus.end(), *count, model);
    }
    return gpus;
  }

  // A number of NICs gets the names that InfiniBand cards mostly have.
  void read_nics(const toml::table& entry, FleetHost& host) const {
    const toml::array* const names = entry["nics"].as_array();
    if (names == nullptr) {
      const int count = integer(entry, "nics", 0, kMaxNics).value_or(0);
      host.nics = mapped_indices(count, [](int i) { return cat("mlx5_", i); });
      return;
    }
    for (const toml::node& name : *names) {
      const std::string& text = value_as<Text>(name, "names of NICs").get();
      if (host.nics.size() == kMaxNics)
        fail(name.source().begin, cat("at most ", kMaxNics, " NICs"), "more");
      host.nics.push_back(clean_text(text));
    }
  }

  // NVLink between GPUs that have no ports for it would be a machine that cannot be.
  void read_nvlink(const toml::node& value, FleetHost& host) const {
    if (value.is_array()) {
      host.nvlink = NvlinkLayout::matrix;
      host.matrix = read_matrix(*value.as_array(), host);
      return;
    }
    const std::string layout = value.value_exact<std::string>().value_or("");
    using Layout = std::pair<std::string_view, NvlinkLayout>;
    static constexpr Layout kLayouts[] = {
        {"all", NvlinkLayout::all}, {"pairs", NvlinkLayout::pairs}, {"none", NvlinkLayout::none}};
    const Layout* const known = element_with(kLayouts, layout, &Layout::first);
    if (known == nullptr) {
      fail(value.source().begin,
           R"(nvlink = "all", "none", "pairs" or a matrix)",
           in_quotes(layout));
    }
    host.nvlink = known->second;
    if (host.nvlink == NvlinkLayout::none)
      return;
    if (const auto* const unlinked = element_with(host.gpus, 0, &GpuModel::links))
      fail(value.source().begin, "a GPU model with NVLink", (*unlinked)->name);
  }

  // The matrix is square, and symmetric, since a link has two ends.
  LinkMatrix read_matrix(const toml::array& rows, const FleetHost& host) const {
    const size_t size = host.gpus.size();
    if (rows.size() != size)
      fail(rows.source().begin, cat(size, " rows, one a GPU"), cat(rows.size()));
    LinkMatrix links = unknown_links(size);
    for (size_t i = 0; i < size; ++i) {
      const toml::array* const row = rows[i].as_array();
      if (row == nullptr || row->size() != size)
        fail(rows[i].source().begin, cat("a row of ", size), "another");
      for (size_t j = 0; j < size; ++j) {
        links[i][j] = read_link((*row)[j], i == j, host.gpus[i]->vendor);
        if (j < i && links[i][j] != links[j][i]) {
          fail((*row)[j].source().begin,
               cat("the link of row ", j + 1, ", ", to_string(links[j][i])),
               to_string(links[i][j]));
        }
      }
    }
    return links;
  }

  // A number counts the links of the vendor's own kind; a text names a link of any kind. 0 leaves
  // open how two GPUs are joined.
  static std::optional<Link> link_in(const toml::node& cell, bool diagonal, Vendor vendor) {
    if (cell.is_string())
      return parse_link(cell.as_string()->get());
    const int64_t count = cell.value_exact<int64_t>().value_or(-1);
    if (count < 0 || count > kMaxLinkCount)
      return std::nullopt;
    if (count == 0)
      return Link{diagonal ? LinkKind::self : LinkKind::unknown};
    const LinkKind kind = vendor == Vendor::amd ? LinkKind::xgmi : LinkKind::nvlink;
    return Link{kind, static_cast<int>(count)};
  }

  Link read_link(const toml::node& cell, bool diagonal, Vendor vendor) const {
    const auto link = link_in(cell, diagonal, vendor);
    if (!link || (link->kind == LinkKind::self) != diagonal) {
      const char* const expected =
          diagonal ? "\"X\" or 0" : "a number of links, or \"NV4\", \"PIX\", \"SYS\" …";
      const std::string got = cell.value_exact<std::string>().value_or("another");
      fail(cell.source().begin, expected, got);
    }
    return *link;
  }

  // Errors in the other file are told with the place in this one that names it.
  Host captured(const toml::table& entry) const {
    const std::string path = text(entry, "from");
    Host host;
    try {
      host = load_(path);
    } catch (const Error& error) {
      const toml::source_position at = entry.get("from")->source().begin;
      throw Error(error.code(),
                  cat("inventory ",
                      source_,
                      " (line ",
                      at.line,
                      ", column ",
                      at.column,
                      "): ",
                      error.what()));
    }
    host.cpu_slots = integer(entry, "cpu_slots", 1, kMaxCores).value_or(host.cpu_slots);
    return host;
  }

  // Hosts are told apart by their names and GPUs by their UUIDs, in the whole fleet.
  void add(const toml::table& entry, Host host) {
    if (!names_.insert(host.name).second) {
      fail(entry.source().begin, "each host's name once", cat("'", host.name, "' twice"));
    }
    for (Gpu& gpu : host.gpus) {
      make_distinct(host.name, "GPU-", gpu.uuid);
      for (MigInstance& instance : gpu.mig)
        make_distinct(host.name, "MIG-", instance.uuid);
    }
    hosts_.push_back(std::move(host));
  }

  // A captured file's UUIDs stay with the first host that has them.
  void make_distinct(const std::string& host, const char* prefix, GpuUuid& uuid) {
    if (uuid.value.empty() || uuids_.insert(uuid.value).second)
      return;
    uuid.value = prefix + invented_uuid(cat(host, "/", uuid.value)).value.substr(4);
    uuids_.insert(uuid.value);
  }

  const std::string& text_;
  const std::string& source_;
  const HostLoader& load_;
  std::vector<Host> hosts_;
  StringSet names_;
  StringSet uuids_;
  uint64_t parts_ = 0;
};

}  // namespace

std::vector<Host> fleet_hosts(const std::string& text,
                              const std::string& source,
                              const HostLoader& load) {
  return FleetReader(text, source, load).read();
}

}  // namespace muster
