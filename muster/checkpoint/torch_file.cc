// Today's file is a zip archive: data.pkl, and the bytes of each storage as data/KEY. An older one
// is a row of pickles, and the storages behind them. A tensor is a call of _rebuild_tensor_v2 with
// its storage, offset, sizes and strides.
#include "muster/checkpoint/torch_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <caffe2/serialize/inline_container.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/fd.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/files/pickle.h"
#include "muster/checkpoint/safetensors.h"
#include "muster/checkpoint/safetensors_dtype.h"
#include "muster/checkpoint/zip_checksums.h"

namespace muster {

namespace {

using Kind = PickledValue::Kind;

constexpr std::string_view kZip = "PK\x03\x04";
// The first pickle of an older file: a long number that says so.
constexpr std::string_view kOldTorch = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20";
// A dictionary may be in others many times, and those in others.
constexpr int kMostNested = 32;
constexpr size_t kMostValues = 10'000'000;

constexpr auto kConvertIt = "save a copy of another type in Python, as tensor.to(torch.float32)";

constexpr FileRefusal refuse_torch_file{"torch file", "it is damaged or of another kind"};

struct NamedType {
  std::string_view storage;  // its class in torch
  std::string_view dtype;    // its name in torch
  ScalarType type;
};
constexpr NamedType kTypes[] = {{"FloatStorage", "float32", kFloat},
                                {"DoubleStorage", "float64", kDouble},
                                {"HalfStorage", "float16", kHalf},
                                {"BFloat16Storage", "bfloat16", kBFloat16},
                                {"", "uint64", at::kUInt64},
                                {"", "uint32", at::kUInt32},
                                {"", "uint16", at::kUInt16},
                                {"LongStorage", "int64", kLong},
                                {"IntStorage", "int32", kInt},
                                {"ShortStorage", "int16", kShort},
                                {"CharStorage", "int8", kChar},
                                {"ByteStorage", "uint8", kByte},
                                {"BoolStorage", "bool", kBool},
                                {"ComplexFloatStorage", "complex64", kComplexFloat},
                                {"", "float8_e4m3fn", at::kFloat8_e4m3fn},
                                {"", "float8_e5m2", at::kFloat8_e5m2}};

// A tensor that does not consist of plain numbers, and what to save in its place.
struct OtherTensor {
  const char* function;  // that would make it
  const char* what;
  const char* next;
};
constexpr OtherTensor kOtherTensors[] = {
    {"torch._utils _rebuild_sparse_tensor", "a sparse tensor", "save tensor.to_dense() in Python"},
    {"torch._utils _rebuild_qtensor", "a quantized tensor", "save tensor.dequantize() in Python"},
    {"torch._utils _rebuild_nested_tensor",
     "a nested tensor",
     "save each of tensor.unbind() in Python"}};

// A tensor as the pickle describes it.
struct PickledTensor {
  std::string key{};  // of its storage
  ScalarType type = kFloat;
  int64_t offset = 0;  // in elements
  Int64s sizes = {}, strides = {};
  // Why its values are not read, and what to do; empty: they are.
  std::string got{};
  std::string next{};
};

using PickledTensors = std::map<std::string, PickledTensor>;

// Reads the values of a pickle; what has another form than it should is refused.
class TensorsOfPickle {
 public:
  explicit TensorsOfPickle(const std::string& path) : path_(path) {}

  PickledTensors find(const PickledValue& root) {
    add(root, "", 0);
    return std::move(tensors_);
  }

  // The type of the elements of a storage, by its id: ("storage", class, key, device, elements).
  ScalarType type_of_storage(const PickledValue& id) const {
    if (const auto type = type_named(item(id, 1), &NamedType::storage))
      return *type;
    refuse_torch_file(path_, "a storage of a known type", in_quotes(item(id, 1).text), kConvertIt);
  }

 private:
  const PickledValue& item(const PickledValue& list, size_t at) const {
    if (at >= list.items.size())
      refuse_torch_file(path_, "a tensor as torch.save writes it", "less");
    return *list.items[at];
  }

  void add(const PickledValue& value, const std::string& name, int nested) {
    if (nested > kMostNested || ++values_ > kMostValues)
      refuse_torch_file(path_,
                        cat("at most ",
                            kMostValues,
                            " values in at most ",
                            kMostNested,
                            " dictionaries in each other"),
                        "more");
    if (value.kind == Kind::dict) {
      for (size_t i = 0; i + 1 < value.items.size(); i += 2)
        if (const PickledValue& key = *value.items[i]; key.kind == Kind::text)
          add(*value.items[i + 1], name.empty() ? key.text : cat(name, ".", key.text), nested + 1);
    } else if (value.kind == Kind::call) {
      add_call(value, name, nested);
    }
  }

  void add_call(const PickledValue& call, const std::string& name, int nested) {
    const PickledValue &function = item(call, 0), &arguments = item(call, 1);
    const auto is_one_of = [&](std::initializer_list<const char*> names) {
      return any_of(names, [&](const char* one) { return function.is_global(one); });
    };
    if (is_one_of(
            {"torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state"}))
      return add(item(arguments, 0), name, nested + 1);
    for (const OtherTensor& other : kOtherTensors)
      if (function.is_global(other.function))
        return add_tensor(
            name, {.sizes = sizes_within(arguments), .got = other.what, .next = other.next});
    const bool has_type = is_one_of({"torch._utils _rebuild_tensor_v3"});
    if (!has_type &&
        !is_one_of({"torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor"}))
      return;
    const PickledValue& id = item(item(arguments, 0), 0);
    const PickledValue& kind = has_type ? item(arguments, 6) : item(id, 1);
    const auto type = type_named(kind, has_type ? &NamedType::dtype : &NamedType::storage);
    refuse_views(id, arguments, has_type ? 7 : 6, name);
    add_tensor(name,
               {.key = item(id, 2).text,
                .type = type.value_or(kFloat),
                .offset = item(arguments, 1).number,
                .sizes = numbers(item(arguments, 2)),
                .strides = numbers(item(arguments, 3)),
                .got = type ? "" : cat("numbers of '", kind.text, "'"),
                .next = kConvertIt});
  }

  void add_tensor(const std::string& name, PickledTensor tensor) {
    if (!tensors_.emplace(name, std::move(tensor)).second)
      refuse_torch_file(path_, "a unique name for each tensor", cat("'", name, "' twice"));
  }

  // A sparse tensor's sizes are a torch.Size among its parts; a quantized one's are as any's.
  static Int64s sizes_within(const PickledValue& arguments) {
    for (const PickledValue* parts : arguments.items)
      for (const PickledValue* part : parts->items)
        if (part->kind == Kind::call && part->items.size() > 1 &&
            part->items[0]->is_global("torch Size") && !part->items[1]->items.empty())
          return numbers(*part->items[1]->items[0]);
    return arguments.items.size() > 2 ? numbers(*arguments.items[2]) : Int64s{};
  }

  // What would change the values: conjugated or negated ones, and in older files a storage that is
  // a part of another.
  void refuse_views(const PickledValue& id,
                    const PickledValue& arguments,
                    size_t metadata,
                    const std::string& name) const {
    const auto says_something = [](const PickledValue& list, size_t at) {
      return at < list.items.size() && list.items[at]->kind != Kind::none &&
             !list.items[at]->items.empty();
    };
    if (says_something(arguments, metadata) || says_something(id, 5))
      refuse_torch_file(path_,
                        cat("plain values of '", name, "'"),
                        "a view (conjugated, negated or of a part of a storage)",
                        "save a copy of it: tensor.clone(), or resolve_conj()");
  }

  static std::optional<ScalarType> type_named(const PickledValue& name,
                                              std::string_view NamedType::* names) {
    for (const NamedType& each : kTypes)
      if (!(each.*names).empty() && name.text == cat("torch ", each.*names))
        return each.type;
    return std::nullopt;
  }

  static Int64s numbers(const PickledValue& list) {
    return mapped(list.items, [&](const PickledValue* each) { return each->number; });
  }

  const std::string& path_;
  PickledTensors tensors_;
  size_t values_ = 0;  // that were looked at
};

// The bytes of a storage, which live as long as `owner`.
struct StorageBytes {
  void* begin = nullptr;
  size_t size = 0;
  std::shared_ptr<void> owner{};

  std::string text() const {
    std::string copy(size, '\0');
    std::memcpy(copy.data(), begin, size);
    return copy;
  }
};
// `of` is the tensor that they are read for.
using ReadStorage = std::function<StorageBytes(const std::string& key, const std::string& of)>;

// Elements that the tensor's storage must have. Nothing if sizes and strides make no sense.
std::optional<uint64_t> needed_elements(const PickledTensor& tensor) {
  constexpr int64_t kMost = int64_t{1} << 48;  // so that no sum overflows
  if (tensor.sizes.size() != tensor.strides.size() || tensor.offset < 0 || tensor.offset > kMost)
    return std::nullopt;
  int64_t last = tensor.offset;
  bool is_empty = false;
  for (const size_t i : indices_of(tensor.sizes)) {
    const int64_t size = tensor.sizes[i], stride = tensor.strides[i];
    if (size < 0 || stride < 0 || size > kMost || stride > kMost)
      return std::nullopt;
    is_empty |= size == 0;
    if (size > 1 && stride > (kMost - last) / (size - 1))
      return std::nullopt;
    last += (size - 1) * stride;
  }
  return is_empty ? 0 : last + 1;
}

class TorchFile : public WeightSource {
 public:
  TorchFile(const std::string& path, PickledTensors tensors, ReadStorage storage)
      : path_(path), pickled_(std::move(tensors)), storage_(std::move(storage)) {
    if (pickled_.empty())
      refuse_torch_file(
          path,
          "a dictionary of tensors",
          "none",
          "save net.state_dict() in Python; what C++'s torch::save wrote is for torch::load");
    for (const auto& [name, tensor] : pickled_) {
      if (tensor.got.empty() && !needed_elements(tensor))
        refuse_torch_file(path, cat("the sizes and strides of '", name, "'"), "impossible ones");
      entries_.emplace(name, tensor_entry(tensor.type, tensor.sizes));
    }
  }

  const TensorEntries& tensors() const override { return entries_; }

  bool is_readable(const std::string& name) const override { return pickled_.at(name).got.empty(); }

  Tensor read(const std::string& name) const override {
    const PickledTensor& tensor = pickled_.at(name);
    if (!tensor.got.empty())
      refuse_torch_file(path_, cat("plain numbers as '", name, "'"), tensor.got, tensor.next);
    const StorageBytes& storage = storage_of(tensor, name);
    const uint64_t needed = *needed_elements(tensor);
    if (needed > storage.size / c10::elementSize(tensor.type))
      refuse_torch_file(path_,
                        cat(needed, " numbers for '", name, "'"),
                        cat("a storage of ", storage.size, " bytes"));
    const Tensor out = at::empty(tensor.sizes, tensor.type);
    if (needed == 0)
      return out;
    const Tensor values = tensor.type == kBool ? out.view(kByte) : out;
    values.copy_(at::from_blob(
        storage.begin,
        tensor.sizes,
        tensor.strides,
        tensor.offset,
        [](void* /*storage*/) {},
        at::TensorOptions(tensor.type == kBool ? kByte : tensor.type)));
    check_bools(path_, name, out);
    return out;
  }

 private:
  // Several tensors of one storage mostly follow each other.
  const StorageBytes& storage_of(const PickledTensor& tensor, const std::string& name) const {
    if (last_key_ != tensor.key) {
      last_ = storage_(tensor.key, name);
      last_key_ = tensor.key;
    }
    return last_;
  }

  std::string path_;
  PickledTensors pickled_;
  ReadStorage storage_;
  TensorEntries entries_;
  mutable std::optional<std::string> last_key_;
  mutable StorageBytes last_;
};

struct Archive {
  explicit Archive(const std::string& path) : reader(path), checksums(path) {}

  caffe2::serialize::PyTorchStreamReader reader;
  ZipChecksums checksums;
};

// LibTorch's errors about archives have pages of text; the first sentence says what is wrong.
template <class Work>
auto with_archive(const std::string& path, const Work& work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    const std::string line = split(error.what_without_backtrace(), '\n').front();
    refuse_torch_file(path, "a whole archive", line.substr(0, line.find(". ")));
  }
}

// `what` is in the record, for the message. LibTorch compares no checksum.
StorageBytes read_record(Archive& archive,
                         const std::string& name,
                         const std::string& path,
                         const std::string& what) {
  return with_archive(path, [&]() -> StorageBytes {
    auto [data, size] = archive.reader.getRecord(name);
    if (!archive.checksums.fits(name, data.get(), size))
      refuse_torch_file(path,
                        cat("the saved bytes of ", what),
                        cat("others in '", name, "', by its checksum"),
                        "the file is damaged: copy or download it again");
    auto owner = std::make_shared<at::DataPtr>(std::move(data));
    return {.begin = owner->get(), .size = size, .owner = owner};
  });
}

WeightSourcePtr open_archive(const std::string& path) {
  const auto archive = with_archive(path, [&] { return std::make_shared<Archive>(path); });
  const StorageBytes data =
      read_record(*archive, "data.pkl", path, "the names and shapes of its tensors");
  const bool says_order =
      with_archive(path, [&] { return archive->reader.hasRecord("byteorder"); });
  const std::string order =
      says_order ? read_record(*archive, "byteorder", path, "its byte order").text() : "little";
  if (order != "little")
    refuse_torch_file(path, "little-endian numbers", in_quotes(order));
  const Pickle pickle = read_pickle(data.text(), path);
  return std::make_unique<TorchFile>(
      path,
      TensorsOfPickle(path).find(*pickle.root),
      [archive, path](const std::string& key, const std::string& of) {
        return read_record(*archive, cat("data/", key), path, in_quotes(of));
      });
}

// The storages of an older file, from `at` on: each is the number of its elements, and these.
std::map<std::string, StorageBytes> old_storages(const std::shared_ptr<std::string>& file,
                                                 size_t at,
                                                 const PickledValue& keys,
                                                 const std::map<std::string, ScalarType>& types,
                                                 const std::string& path) {
  std::map<std::string, StorageBytes> storages;
  for (const PickledValue* key : keys.items) {
    const ScalarType* const type = value_at(types, key->text);
    uint64_t elements = 0;
    if (type == nullptr || file->size() - at < sizeof(elements))
      refuse_torch_file(path, cat("the storage '", key->text, "'"), "none");
    std::memcpy(&elements, file->data() + at, sizeof(elements));
    at += sizeof(elements);
    const size_t size = c10::elementSize(*type);
    if (elements > (file->size() - at) / size)
      refuse_torch_file(path, cat(elements, " numbers in '", key->text, "'"), "fewer");
    storages[key->text] = {.begin = file->data() + at, .size = elements * size, .owner = file};
    at += elements * size;
  }
  return storages;
}

WeightSourcePtr open_old_file(const std::string& path) {
  const auto file = std::make_shared<std::string>(read_plain_file(path));
  size_t at = 0;
  const auto next = [&] {
    Pickle pickle = read_pickle(std::string_view(*file).substr(at), path);
    at += pickle.bytes;
    return pickle;
  };
  next();  // the number that says what it is, the version, and about the machine
  next();
  next();
  const Pickle content = next(), keys = next();
  TensorsOfPickle reader(path);
  std::map<std::string, ScalarType> types;
  for (const PickledValue& value : content.values)
    if (value.kind == Kind::persistent && value.items[0]->items.size() >= 3)
      types.emplace(value.items[0]->items[2]->text, reader.type_of_storage(*value.items[0]));
  auto storages = old_storages(file, at, *keys.root, types, path);
  return std::make_unique<TorchFile>(
      path,
      reader.find(*content.root),
      [path, storages = std::move(storages)](const std::string& key, const std::string& of) {
        const StorageBytes* const found = value_at(storages, key);
        if (found == nullptr)
          refuse_torch_file(path, cat("the storage '", key, "' of '", of, "'"), "none");
        return *found;
      });
}

std::string first_bytes(const std::string& path) {
  return read_plain_file(path, kOldTorch.size()).substr(0, kOldTorch.size());
}

}  // namespace

bool is_torch_file(const std::string& path) {
  const auto begin = first_bytes(path);
  return begin.starts_with(kZip) || begin == kOldTorch;
}

WeightSourcePtr open_torch_file(const std::string& path) {
  const auto begin = first_bytes(path);
  if (begin.empty())
    refuse_torch_file(path,
                      "what torch.save writes",
                      "an empty file",
                      "whoever wrote or copied it was interrupted: make it again");
  return begin.starts_with(kZip) ? open_archive(path) : open_old_file(path);
}

}  // namespace muster
