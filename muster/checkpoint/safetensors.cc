#include "muster/checkpoint/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kMaxHeadBytes = 100'000'000;
constexpr uint64_t kLengthBytes = 8;

[[noreturn]] void refuse(const std::string& path, const std::string& got) {
  throw Error(ErrorCode::invalid_argument, cat("safetensors: expected a valid file in '", path, "', got ",
                                               got, "; it is damaged or of another kind"));
}

Fd open_file(const std::string& path, uint64_t& bytes) {
  // Without waiting: a pipe of that name would otherwise hold us for ever.
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0)
    fail_errno(cat("safetensors: cannot open '", path, "'"), errno);
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::io,
                cat("safetensors: expected a file at '", path, "', got something else; correct the path"));
  }
  bytes = static_cast<uint64_t>(info.st_size);
  return fd;
}

void read_exactly(const Fd& fd, void* to, uint64_t size, uint64_t at, const std::string& path) {
  auto* out = static_cast<char*>(to);
  for (uint64_t done = 0; done < size;) {
    const ssize_t n = ::pread(fd.get(), out + done, size - done, static_cast<off_t>(at + done));
    if (n == 0) refuse(path, "one that was cut short while it was read");
    if (n > 0) {
      done += static_cast<uint64_t>(n);
    } else if (errno != EINTR) {
      fail_errno(cat("safetensors: cannot read '", path, "'"), errno);
    }
  }
}

SafetensorsHead read_head(const Fd& fd, uint64_t file_bytes, const std::string& path) {
  if (file_bytes < kLengthBytes) refuse(path, cat("a file of only ", file_bytes, " bytes"));
  uint64_t head_bytes = 0;
  read_exactly(fd, &head_bytes, kLengthBytes, 0, path);
  if (head_bytes > kMaxHeadBytes || head_bytes > file_bytes - kLengthBytes) {
    refuse(path, cat("a head of ", head_bytes, " bytes in a file of ", file_bytes));
  }
  SafetensorsHead head;
  head.json.resize(head_bytes);
  read_exactly(fd, head.json.data(), head_bytes, kLengthBytes, path);
  head.data_bytes = file_bytes - kLengthBytes - head_bytes;
  return head;
}

// Places the tensors one after the other, widest elements first, so that each is aligned to its element size.
SafetensorsHeader lay_out(const NamedTensors& tensors, const Metadata& metadata) {
  std::vector<const NamedTensors::value_type*> order;
  for (const auto& item : tensors) {
    const auto& [name, tensor] = item;
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized() ||
        !safetensors_dtype(tensor.scalar_type())) {
      throw Error(ErrorCode::invalid_argument,
                  cat("safetensors: expected a dense tensor of a common dtype as '", name, "', got ",
                      tensor.defined() ? tensor.toString() : std::string("an undefined one"),
                      "; convert it before it is saved"));
    }
    order.push_back(&item);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->second.element_size() > b->second.element_size();
  });
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  uint64_t at = 0;
  for (const auto* item : order) {
    const auto& tensor = item->second;
    const uint64_t size = static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
    header.tensors[item->first] = {tensor.scalar_type(), tensor.sizes().vec(), at, at + size};
    at += size;
  }
  return header;
}

uint64_t data_bytes_of(const SafetensorsHeader& header) {
  uint64_t bytes = 0;
  for (const auto& [name, entry] : header.tensors) bytes = std::max(bytes, entry.end);
  return bytes;
}

}  // namespace

SafetensorsHead read_safetensors_head(const std::string& path) {
  uint64_t bytes = 0;
  const Fd fd = open_file(path, bytes);
  return read_head(fd, bytes, path);
}

SafetensorsContent read_safetensors(const std::string& path) {
  uint64_t bytes = 0;
  const Fd fd = open_file(path, bytes);
  const auto head = read_head(fd, bytes, path);
  auto header = parse_safetensors_header(head.json, head.data_bytes, path);
  SafetensorsContent content{.tensors = {}, .metadata = std::move(header.metadata)};
  for (const auto& [name, entry] : header.tensors) {
    auto tensor = at::empty(entry.shape, entry.dtype);
    read_exactly(fd, tensor.mutable_data_ptr(), entry.end - entry.begin,
                 kLengthBytes + head.json.size() + entry.begin, path);
    // A bool that is neither 0 nor 1 would be undefined behaviour later.
    if (entry.dtype == c10::ScalarType::Bool && tensor.numel() > 0 &&
        tensor.view(at::kByte).max().item<uint8_t>() > 1) {
      refuse(path, cat("a BOOL tensor '", name, "' with other bytes than 0 and 1"));
    }
    content.tensors.emplace(name, std::move(tensor));
  }
  return content;
}

SafetensorsHead make_safetensors_head(const NamedTensors& tensors, const Metadata& metadata) {
  const auto header = lay_out(tensors, metadata);
  return {format_safetensors_header(header), data_bytes_of(header)};
}

WrittenFile write_safetensors(const std::string& folder, const std::string& name, const NamedTensors& tensors,
                              const Metadata& metadata) {
  const auto header = lay_out(tensors, metadata);
  const auto json = format_safetensors_header(header);
  if (json.size() > kMaxHeadBytes) {
    throw Error(ErrorCode::invalid_argument,
                cat("safetensors: expected a head of at most ", kMaxHeadBytes, " bytes, got ", json.size(),
                    "; save fewer tensors in a file"));
  }
  std::vector<std::pair<uint64_t, std::string>> order;
  for (const auto& [tensor, entry] : header.tensors) order.emplace_back(entry.begin, tensor);
  std::sort(order.begin(), order.end());

  DurableFile file(folder, name);
  const uint64_t head_bytes = json.size();
  file.write(&head_bytes, kLengthBytes);
  file.write(json);
  for (const auto& [begin, tensor_name] : order) {
    const auto bytes = tensors.at(tensor_name).detach().cpu().contiguous();
    file.write(bytes.const_data_ptr(), bytes.nbytes());
  }
  return file.finish();
}

}  // namespace muster
