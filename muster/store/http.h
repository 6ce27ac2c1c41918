// POST requests over HTTP, by the system's libcurl, which is loaded when the first is made: a
// launcher that needs none starts without it. For etcd_store.cc.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"

namespace muster {

struct HttpOptions {
  Strings urls{};           // "http://10.0.0.1:2379": servers of which each is as good
  std::string ca_file{};    // https: who vouches for the server; empty: the system's
  std::string cert_file{};  // https: who we are
  std::string key_file{};
  milliseconds connect_timeout{5'000};
  milliseconds timeout{5'000};  // of one request
};

class Http : NoCopy {
 public:
  // Throws: unavailable when there is no libcurl.
  explicit Http(HttpOptions options);
  ~Http();

  // The answer's body. One at a time. Asks the server that answered last, and when that does not,
  // or cannot (a status of 500 and more), the others in turn, each for the timeout. Throws:
  // unavailable naming the address (nobody there, no answer, another status than 200), of the last
  // one asked.
  std::string post(const std::string& path, const std::string& body);

 private:
  class Curl;
  HttpOptions options_;
  std::mutex mutex_;
  size_t server_ = 0;  // in options_.urls: the one that answers
  std::unique_ptr<Curl> curl_;
};

}  // namespace muster
