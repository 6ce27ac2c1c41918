// POST requests over HTTP, by the system's libcurl, which is loaded when the first is made: a launcher that
// needs none starts without it. For etcd_store.cc.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

namespace muster {

struct HttpOptions {
  std::string url = {};        // "http://10.0.0.1:2379"
  std::string ca_file = {};    // https: who vouches for the server; empty: the system's
  std::string cert_file = {};  // https: who we are
  std::string key_file = {};
  std::chrono::milliseconds timeout{5'000};  // of one request
};

class Http {
 public:
  // Throws: unavailable when there is no libcurl.
  explicit Http(HttpOptions options);
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;
  ~Http();

  // The answer's body. One at a time. Throws: unavailable naming the address (nobody there, no answer,
  // another status than 200).
  std::string post(const std::string& path, const std::string& body);

 private:
  class Curl;
  HttpOptions options_;
  std::mutex mutex_;
  std::unique_ptr<Curl> curl_;
};

}  // namespace muster
