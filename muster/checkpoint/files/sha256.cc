// OpenSSL computes it; its context stays out of the header.
#include "muster/checkpoint/files/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/hex.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Throws: internal if OpenSSL has failed, as it does only where it is broken.
void must(int result) {
  if (result != 1)
    throw Error(ErrorCode::internal,
                "sha256: expected OpenSSL to compute it, got a failure; check the library");
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
  must(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
}

void Sha256::update(const void* bytes, size_t size) {
  must(EVP_DigestUpdate(context_.get(), bytes, size));
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  must(EVP_DigestFinal_ex(context_.get(), digest, &size));
  return to_hex({reinterpret_cast<const char*>(digest), size});
}

std::string sha256_of_file(const std::string& path, const OnBytes& on_piece) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid())
    fail_errno(errno, "cannot open '", path, "'");
  Sha256 hash;
  std::string buffer(1 << 20, '\0');
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n == 0)
      return hash.hex();
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      fail_errno(errno, "cannot read '", path, "'");
    hash.update(buffer.data(), n);
    if (on_piece)
      on_piece(n);
  }
}

}  // namespace muster
