// How it works: one libcurl handle, which keeps its connection between requests. Servers are equal:
// when one does not answer or says that it cannot, the next is asked.
#include "muster/store/http.h"

#include <utility>

#include <curl/curl.h>
#include <sys/socket.h>

#include "muster/base/error.h"
#include "muster/base/loaded_library.h"
#include "muster/base/lock.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// A job's keys and values are less.
constexpr size_t kMostAnswerBytes = size_t{256} << 20;

// Ranks must not inherit the socket.
curl_socket_t open_socket(void* /*unused*/, curlsocktype /*purpose*/, curl_sockaddr* address) {
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

// To take less than was given is an error for libcurl.
size_t take_body(char* bytes, size_t size, size_t count, void* to) {
  auto& body = *static_cast<std::string*>(to);
  if (body.size() + size * count > kMostAnswerBytes)
    return 0;
  body.append(bytes, size * count);
  return size * count;
}

}  // namespace

// The few functions that are used. The library must stay: it keeps threads and exit handlers.
struct CurlLibrary : LoadedLibrary {
  CurlLibrary()
      : LoadedLibrary("libcurl.so.4",
                      "http: expected libcurl.so.4 for requests",
                      "install the package libcurl4") {}

  decltype(&::curl_easy_init) init = find("curl_easy_init");
  decltype(&::curl_easy_setopt) setopt = find("curl_easy_setopt");
  decltype(&::curl_easy_perform) perform = find("curl_easy_perform");
  decltype(&::curl_easy_getinfo) getinfo = find("curl_easy_getinfo");
  decltype(&::curl_easy_cleanup) cleanup = find("curl_easy_cleanup");
  decltype(&::curl_easy_strerror) strerror = find("curl_easy_strerror");
};

// A handle of libcurl, whose options are set once.
class Http::Curl : NoCopy {
 public:
  explicit Curl(const HttpOptions& options) : library_(library()), handle_(library_.init()) {
    if (handle_ == nullptr)
      throw Error(ErrorCode::internal, "http: libcurl cannot start");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_POST, 1L);
    set(CURLOPT_NOPROXY, "*");
    set<long>(CURLOPT_CONNECTTIMEOUT_MS, options.connect_timeout.count());
    set<long>(CURLOPT_TIMEOUT_MS, options.timeout.count());
    set(CURLOPT_OPENSOCKETFUNCTION, &open_socket);
    set(CURLOPT_WRITEFUNCTION, &take_body);
    if (!options.ca_file.empty())
      set(CURLOPT_CAINFO, options.ca_file.c_str());
    if (!options.cert_file.empty())
      set(CURLOPT_SSLCERT, options.cert_file.c_str());
    if (!options.key_file.empty())
      set(CURLOPT_SSLKEY, options.key_file.c_str());
  }
  ~Curl() { library_.cleanup(handle_); }

  struct Answer {
    std::string body{};
    std::string error{};     // empty: it is one
    bool is_servers = true;  // an error of this server's, that another may not have
  };

  Answer post(const std::string& url, const std::string& body) {
    std::string answer;
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_WRITEDATA, &answer);
    set(CURLOPT_POSTFIELDS, body.data());
    set<curl_off_t>(CURLOPT_POSTFIELDSIZE_LARGE, std::ssize(body));
    const CURLcode code = library_.perform(handle_);
    if (code != CURLE_OK)
      return {.error =
                  cat("http: expected an answer of ", url, ", got: ", library_.strerror(code))};
    long status = 0;
    library_.getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200)
      return {.body = std::move(answer)};
    const auto said = printable(answer.substr(0, 300));
    return {.error =
                cat("http: expected ", url, " to answer with status 200, got ", status, ": ", said),
            .is_servers = status >= 500};
  }

 private:
  static const CurlLibrary& library() {
    static const CurlLibrary loaded;
    return loaded;
  }

  // libcurl's function takes anything, so that the type must be the option's.
  template <class Value>
  void set(CURLoption option, Value value) {
    library_.setopt(handle_, option, value);
  }

  const CurlLibrary& library_;
  CURL* handle_;
};

Http::Http(HttpOptions options)
    : options_(std::move(options)), curl_(std::make_unique<Curl>(options_)) {}

Http::~Http() = default;

// Each server is asked once, beginning with the one that has answered last.
std::string Http::post(const std::string& path, const std::string& body) {
  const Lock lock(mutex_);
  Curl::Answer answer;
  for (size_t asked = 0; asked < options_.urls.size(); ++asked) {
    answer = curl_->post(options_.urls[server_] + path, body);
    if (answer.error.empty())
      return std::move(answer.body);
    if (!answer.is_servers)
      break;
    server_ = (server_ + 1) % options_.urls.size();
  }
  throw unavailable(answer.error);
}

}  // namespace muster
