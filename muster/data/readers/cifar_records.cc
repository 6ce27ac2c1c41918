// A record is one or two labels and a plane of pixels a colour; a file is records and nothing else,
// so its size says how many there are.
#include "muster/data/readers/cifar_records.h"

#include <cstring>

#include "muster/base/refusal.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr FileRefusal refuse_cifar{"cifar", "fetch the file again, or correct the folder"};

}  // namespace

int64_t count_cifar_records(std::string_view bytes,
                            const CifarKind& kind,
                            const std::string& name) {
  if (bytes.empty() || bytes.size() % kind.size() != 0)
    refuse_cifar(
        name,
        cat("records of ", kind.size(), " bytes"),
        cat(bytes.size(), " bytes, which is ", bytes.empty() ? "none" : "no whole number of them"));
  return static_cast<int64_t>(bytes.size() / kind.size());
}

// `pixels` and `labels` need room for as many records as count_cifar_records() counts.
void read_cifar_records(std::string_view bytes,
                        const CifarKind& kind,
                        const std::string& name,
                        uint8_t* pixels,
                        int64_t* labels) {
  const int64_t count = count_cifar_records(bytes, kind, name);
  const char* record = bytes.data();
  for (int64_t i = 0; i < count; ++i, record += kind.size(), pixels += kCifarPixels) {
    labels[i] = static_cast<unsigned char>(record[kind.label]);
    if (labels[i] >= kind.classes)
      refuse_cifar(
          name, cat("labels from 0 to ", kind.classes - 1), cat(labels[i], " in record ", i));
    std::memcpy(pixels, record + kind.labels, kCifarPixels);
  }
}

}  // namespace muster
