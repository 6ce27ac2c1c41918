// A head comes from a file that anybody may have made. It is parsed event by event, so that nothing
// in it is lost (a document keeps only the last of two equal keys), and every number is bounded
// before it is used. The tensors must then tile the data: no hole, no overlap.
#include "muster/checkpoint/files/safetensors_header.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr auto kMetadataKey = "__metadata__";
constexpr size_t kMaxDimensions = 64;  // LibTorch's own limit
constexpr uint64_t kMaxInt64 = INT64_MAX;

constexpr std::pair<std::string_view, uint64_t> kElementBits[] = {
    {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"U16", 16},
    {"I16", 16}, {"F16", 16},    {"BF16", 16},   {"U32", 32},    {"I32", 32},
    {"F32", 32}, {"U64", 64},    {"I64", 64},    {"F64", 64},    {"C64", 64},
};

// Returns 0 for a type that the format does not know.
uint64_t element_bits(std::string_view dtype) {
  return lookup(kElementBits, dtype, 0);
}

// Takes the events of nlohmann's parser, whose documents silently keep the last of duplicate keys.
// Every method answers false to stop; `problem` says why.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::string problem;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a fraction or huge number");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    const bool is_extent = value <= kMaxInt64 && entry_.shape.size() < kMaxDimensions;
    if (place_ == Place::shape && is_extent) {
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::offsets && offsets_ < 2) {
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return unexpected(cat("the number ", value));
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      header.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype")
      return unexpected("a text");
    if (safetensors_element_size(value) == 0)
      return stop("tensor '", tensor_, "' has the unknown dtype '", value, "'");
    entry_.dtype = value;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::outside)
      return move_to(Place::top);
    if (place_ != Place::top)
      return unexpected("an object");
    keys_.clear();
    if (tensor_ == kMetadataKey)
      return move_to(Place::metadata);
    entry_ = {};
    offsets_ = 0;
    return move_to(Place::tensor);
  }

  bool key(string_t& value) override {
    key_ = value;
    if (place_ == Place::top) {
      tensor_ = value;
      return names_.insert(value).second || stop("the name '", value, "' twice");
    }
    if (place_ == Place::tensor && value != "dtype" && value != "shape" && value != "data_offsets")
      return stop("tensor '", tensor_, "' has the unknown key '", value, "'");
    return keys_.insert(value).second || stop("the key '", value, "' twice in '", tensor_, "'");
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      if (keys_.size() != 3 || offsets_ != 2)
        return stop("tensor '", tensor_, "' lacks dtype, shape or two data_offsets");
      header.tensors.emplace(tensor_, std::move(entry_));
    }
    return move_to(place_ == Place::top ? Place::done : Place::top);
  }

  bool start_array(size_t) override {
    if (place_ == Place::tensor && key_ == "shape")
      return move_to(Place::shape);
    if (place_ == Place::tensor && key_ == "data_offsets")
      return move_to(Place::offsets);
    return unexpected("an array");
  }
  bool end_array() override { return move_to(Place::tensor); }

  bool parse_error(size_t position,
                   const std::string&,
                   const nlohmann::detail::exception&) override {
    return stop("no valid JSON at byte ", position);
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets, done };

  bool move_to(Place place) {
    place_ = place;
    return true;
  }
  template <class... Parts>
  bool stop(const Parts&... why) {
    problem = cat(why...);
    return false;
  }
  bool unexpected(const std::string& what) {
    return stop(tensor_.empty() ? what : cat(what, " where none belongs, in '", tensor_, "'"));
  }

  Place place_ = Place::outside;
  std::string key_;
  std::string tensor_;
  TensorEntry entry_;
  int offsets_ = 0;
  StringSet names_;
  StringSet keys_;
};

// Returns the bits of a tensor, or nothing if they overflow.
std::optional<uint64_t> bits_of(const TensorEntry& entry) {
  // Zero extents do not excuse the others: strides are products of those.
  uint64_t size = element_bits(entry.dtype);
  bool empty = false;
  for (const int64_t extent : entry.shape) {
    if (extent == 0) {
      empty = true;
      continue;
    }
    const uint64_t factor = extent;
    if (__builtin_mul_overflow(size, factor, &size) || size > kMaxInt64)
      return std::nullopt;
  }
  return empty ? 0 : size;
}

// Returns why a tensor does not take as many bytes as its type and shape need, or "".
std::string size_problem(const std::string& name, const TensorEntry& entry) {
  const auto bits = bits_of(entry);
  if (!bits)
    return cat("tensor '", name, "' whose size overflows");
  if (*bits % 8 != 0)
    return cat("tensor '", name, "' ", to_string(entry), " of no whole number of bytes");
  const uint64_t size = *bits / 8;
  if (entry.begin <= entry.end && entry.end - entry.begin == size)
    return "";
  return cat("tensor '",
             name,
             "' ",
             to_string(entry),
             " of ",
             size,
             " bytes with the offsets ",
             entry.begin,
             " to ",
             entry.end);
}

// Returns why the tensors do not tile the data, or "".
std::string tiling_problem(const SafetensorsHeader& header, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const auto& [name, entry] : header.tensors)
    if (const auto problem = size_problem(name, entry); !problem.empty())
      return problem;
  for (const auto& [name, entry] : tensors_by_place(header)) {
    if (entry.begin != at) {
      return cat(entry.begin < at ? "an overlap" : "a hole",
                 " before tensor '",
                 name,
                 "' at byte ",
                 entry.begin,
                 " of the data");
    }
    at = entry.end;
  }
  if (at != data_bytes)
    return cat(data_bytes, " bytes of data where the tensors take ", at);
  return "";
}

}  // namespace

// One without bytes comes before the one that begins where it does.
PlacedTensors tensors_by_place(const SafetensorsHeader& header) {
  PlacedTensors tensors(header.tensors.begin(), header.tensors.end());
  std::ranges::stable_sort(
      tensors, {}, [](const auto& item) { return std::pair(item.second.begin, item.second.end); });
  return tensors;
}

uint64_t lay_out(SafetensorsHeader& header) {
  auto order = mapped(header.tensors, [](auto& item) { return &item.second; });
  std::ranges::stable_sort(order, std::greater(), [](const TensorEntry* entry) {
    return safetensors_element_size(entry->dtype);
  });
  uint64_t at = 0;
  for (TensorEntry* entry : order) {
    entry->begin = at;
    entry->end = at += tensor_bytes(*entry);
  }
  return at;
}

std::string to_string(const TensorEntry& entry) {
  return cat(entry.dtype, "[", join(entry.shape, ", "), "]");
}

// Elements of F4 and F6 count as whole bytes here; has_whole_elements tells them apart.
uint64_t safetensors_element_size(std::string_view dtype) {
  return (element_bits(dtype) + 7) / 8;
}

bool has_whole_elements(std::string_view dtype) {
  return element_bits(dtype) % 8 == 0;
}

uint64_t tensor_bytes(const TensorEntry& entry) {
  return bits_of(entry).value_or(0) / 8;
}

int64_t tensor_units(const TensorEntry& entry) {
  return static_cast<int64_t>(tensor_bytes(entry) / safetensors_element_size(entry.dtype));
}

// The parser would skip blanks before the brace, which the format does not allow.
SafetensorsHeader parse_safetensors_header(std::string_view json,
                                           uint64_t data_bytes,
                                           const std::string& name) {
  HeaderReader reader;
  if (json.empty() || json.front() != '{') {
    reader.problem = "no '{' at its head";
  } else if (nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    reader.problem = tiling_problem(reader.header, data_bytes);
  }
  if (!reader.problem.empty()) {
    throw invalid_argument("safetensors: expected a valid file in '",
                           name,
                           "', got ",
                           shown_text(reader.problem),
                           "; it is damaged or of another kind");
  }
  return std::move(reader.header);
}

// Tensors are listed in the order of their data.
std::string format_safetensors_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty())
    json[kMetadataKey] = header.metadata;
  for (const auto& [name, entry] : tensors_by_place(header)) {
    if (name == kMetadataKey) {
      throw invalid_argument("safetensors: expected another tensor name than '",
                             kMetadataKey,
                             "', which the format keeps for itself; rename it");
    }
    json[name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  try {
    std::string text = json.dump();
    text.append((8 - text.size() % 8) % 8, ' ');  // the data begins at a multiple of 8
    return text;
  } catch (const nlohmann::json::exception&) {
    throw invalid_argument(
        "safetensors: expected names and metadata in UTF-8, got other bytes; rename the tensor");
  }
}

}  // namespace muster
