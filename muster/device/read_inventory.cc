// The content is looked at, never the name: people rename what they captured. What looks like the
// output of a known tool but is of no use is refused with the command that gives the right one.
#include "muster/device/read_inventory.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/device/inventory_json.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/readers/fleet_toml.h"
#include "muster/device/readers/hwloc_xml.h"
#include "muster/device/readers/nccl_topology.h"
#include "muster/device/readers/nvidia_smi_topo.h"
#include "muster/device/readers/nvidia_smi_xml.h"
#include "muster/device/readers/xml_root.h"

namespace muster {
namespace {

enum class Format { json, nvidia_smi, topo, nccl, hwloc, fleet };

[[noreturn]] void refuse(const std::string& source,
                         const std::string& expected,
                         std::string_view got) {
  throw invalid_argument(
      "inventory ", printable(source), ": expected ", expected, ", got ", clean_text(got));
}

// A text that looks like one of the formats and is not: what it holds, what it is called, and what
// to give instead.
struct OtherFormat {
  std::string_view mark;
  const char* name;
  const char* instead;
};

constexpr OtherFormat kOtherFormats[] = {
    {"=NVSMI LOG=", "the text of nvidia-smi -q", "XML, which nvidia-smi -q -x gives"},
    {"| NVIDIA-SMI ", "the table of nvidia-smi", "XML, which nvidia-smi -q -x gives"},
    {"(UUID: GPU-", "the list of nvidia-smi -L alone", "nvidia-smi topo -m beside it"},
    {"memory.total [", "CSV of nvidia-smi", "XML, which nvidia-smi -q -x gives"},
    {"GPU models and configuration:",
     "PyTorch's collect_env without a GPU topology",
     "nvidia-smi topo -m beside it"},
    {" controller: NVIDIA Corporation", "the text of lspci", "XML, which nvidia-smi -q -x gives"},
    {"ROCm System Management Interface",
     "the text of rocm-smi",
     "what muster devices --json gives there"},
    {"AMDSMI Tool", "the text of amd-smi", "what muster devices --json gives there"},
    {"KFD_ID:", "the text of amd-smi list", "what muster devices --json gives there"},
    {"GPU: 0\n    ", "the text of amd-smi", "what muster devices --json gives there"},
    {"ROCk module", "the text of rocminfo", "what muster devices --json gives there"},
    {"NVIDIA-SMI has failed", "an error of nvidia-smi", "XML, which nvidia-smi -q -x gives"},
    {"Failed to initialize NVML", "an error of nvidia-smi", "XML, which nvidia-smi -q -x gives"},
    {"No devices were found", "an error of nvidia-smi", "XML, which nvidia-smi -q -x gives"},
    {"Machine (", "the text of lstopo", "XML, which lstopo --of xml gives"},
};

// A fleet file may hold any of the marks in its text, so a text with "[[" is left alone.
void refuse_other_formats(std::string_view text, const std::string& source) {
  constexpr size_t kMaxLooked = 4096;
  if (has_text(text, "[["))
    return;
  const std::string_view beginning = text.substr(0, kMaxLooked);
  for (const OtherFormat& other : kOtherFormats) {
    if (has_text(beginning, other.mark))
      refuse(source, other.instead, other.name);
  }
}

// Tools of AMD write JSON of their own: an object of cards, or an array.
constexpr std::pair<std::string_view, const char*> kOtherJson[] = {
    {"{\"card", "JSON of rocm-smi"},
    {"[{", "JSON of amd-smi"},
};

// Blanks do not count: some tools write a line for each member.
void refuse_other_json(std::string_view text, const std::string& source) {
  constexpr size_t kMaxLooked = 100;
  std::string beginning(text.substr(0, kMaxLooked));
  std::erase_if(beginning, [](char c) { return is_one_of(c, ' ', '\t', '\r', '\n'); });
  for (const auto& [mark, name] : kOtherJson) {
    if (beginning.starts_with(mark))
      refuse(source, "what muster devices --json gives there", name);
  }
}

constexpr std::pair<std::string_view, const char*> kPacked[] = {
    {"\x1f\x8b", "a file packed by gzip"},
    {"PK\x03\x04", "a file packed by zip"},
    {"\x28\xb5\x2f\xfd", "a file packed by zstd"},
    {"\xfd"
     "7zXZ",
     "a file packed by xz"},
};

void refuse_packed(std::string_view text, const std::string& source) {
  for (const auto& [mark, name] : kPacked) {
    if (text.starts_with(mark))
      refuse(source, "the unpacked file", name);
  }
}

// Windows' PowerShell writes UTF-16 where output is redirected into a file.
void refuse_utf16(std::string_view text, const std::string& source) {
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    refuse(source, "UTF-8, which iconv -f utf-16 -t utf-8 gives", "UTF-16");
}

// Returns where XML begins behind lines that a program wrote before it, such as nvidia-smi's
// warnings; 0 when there are none.
size_t xml_behind_text(std::string_view text) {
  constexpr size_t kMaxBefore = 4096;
  const size_t at = text.find("\n<?xml ");
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool behind = at <= kMaxBefore && first < at && text[first] != '<';
  return behind ? at + 1 : 0;
}

// A fleet file has a table or a value; text without either is something else.
bool has_fleet_line(std::string_view text) {
  return has_text(text, "[[") || contains(text, '=');
}

// Three programs write XML that is understood; the outermost element tells them apart.
Format format_of_xml(std::string_view text, const std::string& source) {
  const auto root = xml_root_name(text);
  using Root = std::pair<std::string_view, Format>;
  static constexpr Root kRoots[] = {{"nvidia_smi_log", Format::nvidia_smi},
                                    {"system", Format::nccl},
                                    {"topology", Format::hwloc}};
  if (const Root* const known = element_with(kRoots, root, &Root::first))
    return known->second;
  refuse(source,
         "XML of nvidia-smi -q -x, NCCL (<system>) or hwloc (<topology>)",
         cat("<", root, ">"));
}

Format format_of(const std::string& text, const std::string& source) {
  refuse_utf16(text, source);
  refuse_packed(text, source);
  std::string_view rest = without_byte_order_mark(text);
  rest = rest.substr(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
  refuse_other_json(rest, source);
  if (rest.starts_with('{'))
    return Format::json;
  if (rest.starts_with('<'))
    return format_of_xml(rest, source);
  if (is_nvidia_smi_topo(rest))
    return Format::topo;
  refuse_other_formats(rest, source);
  if (rest.empty() || !has_fleet_line(rest)) {
    refuse(source,
           "muster devices --json, nvidia-smi -q -x, nvidia-smi topo -m, an NCCL or hwloc "
           "topology, or a fleet file",
           rest.empty() ? "nothing" : in_quotes(rest.substr(0, 40)));
  }
  return Format::fleet;
}

// A file that is larger than any machine's description is not read to its end.
std::string read_bounded(const std::string& path) {
  std::string bytes = read_file(path, kMaxInventoryBytes);
  if (bytes.size() > kMaxInventoryBytes)
    refuse(path, cat("at most ", kMaxInventoryBytes >> 20U, " MiB"), "more");
  return bytes;
}

// Returns the one host that a fleet file's `from` names. A fleet file in a fleet file could go in
// circles.
Host captured_host(const std::string& path) {
  const auto text = read_bounded(path);
  if (format_of(text, path) == Format::fleet)
    refuse(path, "one captured host", "a fleet file");
  Inventory inventory = parse_inventory(text, path);
  if (inventory.hosts.size() != 1)
    refuse(path, "one host", cat(inventory.hosts.size()));
  return std::move(inventory.hosts.front());
}

// The paths in a fleet file are relative to its own folder.
std::vector<Host> fleet(const std::string& text, const std::string& source) {
  const std::filesystem::path folder = std::filesystem::path(source).parent_path();
  return fleet_hosts(
      text, source, [&](const std::string& path) { return captured_host(folder / path); });
}

// Returns the plain files of a folder in the order of their names; hidden ones are left out.
Strings files_in(const std::string& path) {
  Strings files;
  std::error_code error;
  for (const std::filesystem::path& entry : paths_in(path, error)) {
    const bool hidden = file_name(entry).starts_with('.');
    if (!hidden && std::filesystem::is_regular_file(entry))
      files.push_back(entry);
  }
  if (error)
    fail_errno(error.value(), "cannot list '", path, "'");
  if (files.empty())
    refuse(path, "a folder with inventories", "no file");
  std::ranges::sort(files);
  return files;
}

// Names of hosts must differ over all files, as within one inventory.
Inventory read_folder(const std::string& path) {
  Inventory whole{.source = path, .simulated = true};
  StringSet names;
  for (const auto& file : files_in(path)) {
    for (Host& host : parse_inventory(read_bounded(file), file).hosts) {
      if (!names.insert(host.name).second)
        refuse(file, "each host's name once", cat("'", host.name, "' twice"));
      whole.hosts.push_back(std::move(host));
    }
  }
  return whole;
}

// Only JSON brings an inventory of its own; the others give hosts.
Inventory inventory_of(const std::string& text, const std::string& source) {
  Inventory inventory{.source = source, .simulated = true};
  switch (format_of(text, source)) {
    case Format::json:
      return inventory_from_json(text, source);
    case Format::nvidia_smi:
      inventory.hosts.push_back(nvidia_smi_xml_host(text, source));
      break;
    case Format::topo:
      inventory.hosts.push_back(nvidia_smi_topo_host(text, source));
      break;
    case Format::nccl:
      inventory.hosts = nccl_topology_hosts(text, source);
      break;
    case Format::hwloc:
      inventory.hosts.push_back(hwloc_xml_host(text, source));
      break;
    case Format::fleet:
      inventory.hosts = fleet(text, source);
      break;
  }
  return inventory;
}

}  // namespace

Inventory parse_inventory(const std::string& text, const std::string& source) {
  std::string document(without_byte_order_mark(text));
  const size_t behind = xml_behind_text(document);
  const auto before = document.substr(0, behind);
  // Blanks take the place of those lines, so that errors name the right one.
  for (char& c : std::span(document).first(behind))
    c = c == '\n' ? c : ' ';
  Inventory inventory = inventory_of(document, source);
  if (behind > 0)
    inventory.hosts.at(0).notes.push_back(cat("above the XML stands: ", clean_text(before)));
  return inventory;
}

Inventory read_inventory(const std::string& path) {
  if (is_folder(path))
    return read_folder(path);
  return parse_inventory(read_bounded(path), path);
}

}  // namespace muster
