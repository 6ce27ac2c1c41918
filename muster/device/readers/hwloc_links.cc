// The links between GPUs, from the bandwidths in a file of hwloc. A matrix holds the bandwidth of
// each pair of objects, GPUs and switches among them; divided by what one link carries, it tells
// how many links there are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/links.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/readers/hwloc_objects.h"

namespace muster {
namespace {

constexpr int kMaxObjects = 2 * kMaxHostDevices;
constexpr double kMaxLinks = 1024;  // between two GPUs

// Returns the words in all children called `name`: hwloc breaks long lists over several elements.
StringViews words_in(xml_node matrix, const char* name) {
  return concatenated(matrix.children(name),
                      [](xml_node child) { return words_of(child.text().get()); });
}

// Returns those words as numbers; "OSDev:802" counts as 802.
Int64s numbers_in(const XmlFile& file, xml_node matrix, const char* name, size_t most) {
  Int64s numbers;
  for (const std::string_view word : words_in(matrix, name)) {
    const auto value = parse_int(word.substr(word.find(':') + 1));
    if (!value || *value < 0)
      file.fail(matrix.child(name), "numbers", word);
    file.check_room(numbers, most, "numbers", matrix.child(name));
    numbers.push_back(*value);
  }
  return numbers;
}

// Unidirectional bandwidths in MB/s, by pairs of objects' gp_index.
struct BandwidthMatrix {
  Int64s objects{};
  std::vector<bool> may_be_switch =
      {};           // a processor that GPUs have links to (POWER) passes nothing on
  Int64s values{};  // row by row
};

// Reads the first matrix whose name is `name` ("NVLinkBandwidth"), as hwloc writes one of each;
// empty when there is none.
BandwidthMatrix read_bandwidths(const XmlFile& file, const std::string& name) {
  BandwidthMatrix result;
  const xml_node matrix = file.root().find_child([&](xml_node node) {
    return std::string_view(node.name()).starts_with("distances2") &&
           name == node.attribute("name").value();
  });
  if (!matrix)
    return result;
  const size_t size = file.integer(matrix, "nbobjs", 1, kMaxObjects).value_or(1);
  result.objects = numbers_in(file, matrix, "indexes", size);
  result.may_be_switch = mapped(words_in(matrix, "indexes"), [](std::string_view word) {
    return !word.starts_with("Package:");
  });
  result.values = numbers_in(file, matrix, "u64values", size * size);
  if (result.objects.size() != size || result.values.size() != size * size) {
    file.fail(matrix,
              cat(size, " indexes and ", size * size, " values"),
              cat(result.objects.size(), " and ", result.values.size()));
  }
  return result;
}

// Bandwidths between GPUs by their positions, straight and through switches.
class Bandwidths {
 public:
  Bandwidths(const BandwidthMatrix& matrix, const HwlocDevices& gpus)
      : matrix_(matrix), rows_(gpus.size(), kNone), through_(gpus.size(), 0) {
    std::map<int64_t, size_t> row_of;
    for (const size_t row : indices_of(matrix.objects))
      row_of[matrix.objects[row]] = row;
    std::vector<bool> is_switch = matrix.may_be_switch;
    for (const size_t i : indices_of(gpus)) {
      for (const int64_t number : gpus[i].object_numbers) {
        const size_t* const row = value_at(row_of, number);
        if (row == nullptr)
          continue;
        rows_[i] = *row;
        is_switch[*row] = false;
      }
    }
    for (const size_t i : indices_of(gpus)) {
      if (rows_[i] != kNone)
        through_[i] = sum_to_switches(is_switch, rows_[i]);
    }
  }

  // What two GPUs on the same switches can exchange is what the one with fewer links to them can
  // carry, as hwloc has it (hwloc_distances_transform,
  // HWLOC_DISTANCES_TRANSFORM_TRANSITIVE_CLOSURE).
  double between(size_t a, size_t b) const {
    if (rows_[a] == kNone || rows_[b] == kNone)
      return 0;
    const double straight = std::min(at(rows_[a], rows_[b]), at(rows_[b], rows_[a]));
    return straight > 0 ? straight : std::min(through_[a], through_[b]);
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  double at(size_t row, size_t column) const {
    return static_cast<double>(matrix_.values[row * matrix_.objects.size() + column]);
  }

  double sum_to_switches(const std::vector<bool>& is_switch, size_t row) const {
    double sum = 0;
    for (const size_t column : indices_of(is_switch)) {
      if (is_switch[column])
        sum += at(row, column);
    }
    return sum;
  }

  const BandwidthMatrix& matrix_;
  Indices rows_;     // of each GPU
  Doubles through_;  // of each GPU: to all switches
};

// Sets the link of every pair that the matrix joins. Its bandwidths are in MB/s, those of one link
// in GB/s.
void set_links(LinkMatrix& links,
               const HwlocDevices& gpus,
               const BandwidthMatrix& matrix,
               LinkKind kind) {
  const Bandwidths bandwidths(matrix, gpus);
  for (const size_t i : indices_of(gpus)) {
    for (const size_t j : indices_of(gpus)) {
      const double all = i == j ? 0 : bandwidths.between(i, j);
      if (all <= 0)
        continue;
      const double one = 1000 * link_bandwidth(gpus[i].gpu, gpus[j].gpu, {kind, 1});
      const double count = std::clamp(std::round(all / one), 1.0, kMaxLinks);
      links[i][j] = {kind, static_cast<int>(count)};
    }
  }
}

}  // namespace

// A bandwidth counts before the way over PCI, which every pair of GPUs has.
LinkMatrix hwloc_gpu_links(const XmlFile& file, const DeviceTree& tree, const HwlocDevices& gpus) {
  const auto places = mapped(gpus, &HwlocDevice::place);
  LinkMatrix links = tree.links(places, places);
  set_links(links, gpus, read_bandwidths(file, "NVLinkBandwidth"), LinkKind::nvlink);
  set_links(links, gpus, read_bandwidths(file, "XGMIBandwidth"), LinkKind::xgmi);
  return links;
}

}  // namespace muster
