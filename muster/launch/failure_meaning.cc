// A table of words that programs print, and what they mean. The same table classes an error: as the
// rank's own, as the loss of another rank, or as a broken connection, which may be either.
#include "muster/launch/failure_meaning.h"

#include <string_view>

#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

struct Meaning {
  const char* said;
  const char* meant;                // empty: the words say it
  const char* beside = "";          // in the same line
  Account account = Account::none;  // none: as any error says it
};

constexpr auto kPortInUse = "a port is in use";  // meaning_of_port_in_use says all of it
constexpr auto kLostAnother = "it lost another rank, or the network to it: see that rank";

// The first row that is found counts, so causes stand before what they cause.
constexpr Meaning kMeanings[] = {
    {"CUDA out of memory",
     "the GPU's memory is full: use a smaller batch, or GPUs with more memory (--gpus "
     "'free>=40GiB')"},
    {"CUDA error: out of memory",
     "the GPU's memory is full, perhaps because other jobs use it: see `muster devices`"},
    {"cudaErrorMemoryAllocation",
     "the GPU's memory is full, perhaps because other jobs use it: see `muster devices`"},
    {"HIP out of memory",
     "the GPU's memory is full: use a smaller batch, or GPUs with more memory (--gpus "
     "'free>=40GiB')"},
    {"DefaultCPUAllocator: can't allocate",
     "the host's memory is full, or a limit on it is reached"},
    {"std::bad_alloc", "the host's memory is full, or a limit on it is reached"},
    {"MemoryError", "the host's memory is full, or a limit on it is reached"},
    {"no kernel image is available",
     "the program was built for other GPUs than this one: use another LibTorch, or set "
     "TORCH_CUDA_ARCH_LIST"},
    {"CUDA driver version is insufficient",
     "the driver is older than the program's CUDA: update the driver"},
    {"uncorrectable ECC error",
     "the GPU has a memory fault: reset or replace it, and leave it out (--gpus '!N')"},
    {"device-side assert triggered",
     "an assertion in a kernel failed, often because an index is out of range: "
     "CUDA_LAUNCH_BLOCKING=1 shows where"},
    {"an illegal memory access",
     "a kernel used an invalid address: CUDA_LAUNCH_BLOCKING=1 shows where"},
    {"terminate called without an active exception",
     "a thread still ran when the program ended: in C++, a std::thread that nobody joined; in "
     "Python over "
     "Gloo, sometimes a thread of PyTorch, also under torchrun: end the script with os._exit(0)"},
    {"No space left on device", "a disk, or /dev/shm, is full"},
    {"Too many open files", "the limit on open files is reached: raise it (ulimit -n)"},
    {"Address already in use", kPortInUse},
    {"address already in use", kPortInUse},
    {"error while loading shared libraries",
     "a library is missing: correct LD_LIBRARY_PATH or the program's RPATH"},
    {"ModuleNotFoundError",
     "Python does not find a module: see whether this is the right environment (venv, PYTHONPATH)"},
    {"Watchdog caught collective operation timeout",
     "a rank did not join a collective: see the other ranks' logs"},
    {"ncclRemoteError", kLostAnother, "", Account::lost_peer},
    {"Connection closed by peer", kLostAnother, "gloo/transport", Account::lost_peer},
    {"Connection reset by peer", kLostAnother, "gloo/transport", Account::lost_peer},
    {"Broken pipe", kLostAnother, "gloo/transport", Account::lost_peer},
    {"Connection was likely closed. Did the remote server shutdown or crash?",
     kLostAnother,
     "",
     Account::lost_peer},  // c10d's store
    {"; the first rank that failed has the cause",
     kLostAnother,
     "",
     Account::lost_peer},  // muster's, in Python
    {"Connection closed by peer", kLostAnother, "", Account::connection},
    {"Connection reset by peer", kLostAnother, "", Account::connection},
    {"ConnectionResetError", "", "", Account::connection},
    {"BrokenPipeError", "", "", Account::connection},
    {"EOFError", "", "", Account::connection},
    {"Broken pipe", "", "", Account::connection},
};

// Both texts may stand anywhere in the line.
bool has_words(const std::string& text, const Meaning& meaning) {
  return has_text(text, meaning.said) && has_text(text, meaning.beside);
}

// The last line of a stack that Python prints: "ValueError: bad batch".
bool is_python_error(std::string_view line) {
  const size_t rank_end = line.starts_with("[rank") ? line.find("]: ") : npos;
  if (rank_end != npos)
    line.remove_prefix(rank_end + 3);
  const std::string_view type = line.substr(0, line.find(':'));
  const bool is_name = type.find_first_of(" /\"'") == npos;
  return is_name && (type.ends_with("Error") || type.ends_with("Exception"));
}

// Whether the rank has said words that stand in the table with that account, in its message or in
// its last lines. `in_last_line_alone`: only the very last line counts, and only without a message.
bool says(const RankExit& exit, Account account, bool in_last_line_alone) {
  const auto in = [&](const std::string& text) {
    return any_of(kMeanings, [&](const Meaning& meaning) {
      return meaning.account == account && has_words(text, meaning);
    });
  };
  if (in(exit.message))
    return true;
  if (!in_last_line_alone)
    return any_of(exit.last_lines, in);
  return exit.message.empty() && !exit.last_lines.empty() && in(exit.last_lines.back());
}

// The first row of the table whose words the rank has said; nullptr: none.
const Meaning* meaning_in(const RankExit& exit) {
  return element_where(kMeanings, [&](const Meaning& meaning) {
    const auto says = [&](const std::string& text) {
      return has_words(text, meaning);
    };
    return says(exit.message) || says(exit.stack) || any_of(exit.last_lines, says);
  });
}

// The port that a text names: "…[::]:42471 (errno: 98", "port: 58561", "port=42471",
// "('127.0.0.1', 54373)". 0: it names none.
int port_in(const std::string& text) {
  for (const std::string_view mark : {"port: ", "port=", "]:", "0.0.0.0:", "', "}) {
    const size_t at = text.find(mark);
    if (at == npos)
      continue;
    const std::string_view rest = std::string_view(text).substr(at + mark.size());
    const auto port = parse_number(rest.substr(0, rest.find_first_not_of("0123456789")), 1, 65535);
    if (port)
      return *port;
  }
  return 0;
}

// The port of the error that an address is in use; 0: the error names none.
int port_in_use(const RankExit& exit) {
  const auto is_of_it = [](const std::string& text) {
    return has_text(lower_case(text), "address already in use");
  };
  if (is_of_it(exit.message))
    return port_in(exit.message);
  const std::string* const line = element_where(exit.last_lines, is_of_it);
  return line == nullptr ? 0 : port_in(*line);
}

// Whether PyTorch's store failed to listen. It sets SO_REUSEADDR, as few programs do.
bool is_of_pytorch(const RankExit& exit) {
  const auto is_its = [](const std::string& text) {
    return has_text(text, "The server socket has failed to");
  };
  return is_its(exit.message) || any_of(exit.last_lines, is_its);
}

// Whether a script has started processes of its own with PyTorch's mp.spawn. In ranks of several
// each does so, and all of them meet at one port.
bool spawns_itself(const RankExit& exit) {
  return any_of(exit.last_lines,
                [](const auto& line) { return has_text(line, "torch/multiprocessing/spawn.py"); });
}

// muster holds MASTER_PORT. That is in the way of a program that listens there without
// SO_REUSEADDR, and of no other.
std::string meaning_of_port_in_use(const RankExit& exit) {
  if (spawns_itself(exit))
    return "the script starts its own processes (mp.spawn), in ranks that muster has started "
           "already: start it with python, or replace mp.spawn(f, ...) by "
           "f(int(os.environ['LOCAL_RANK']), ...)";
  const int port = port_in_use(exit);
  if (port != 0 && port != exit.master_port)
    return cat(
        "another process uses port ", port, ": end that, or have the program use another port");
  if (port != 0 && is_of_pytorch(exit))
    return cat("a process listens at MASTER_PORT ",
               port,
               " already: rank 0 may, once; that muster holds the port is not in PyTorch's way");
  const auto number = exit.master_port == 0 ? "" : cat(" ", exit.master_port);
  const auto hold =
      cat("muster holds MASTER_PORT",
          number,
          " for rank 0, which may listen there, once, with SO_REUSEADDR as PyTorch does");
  if (port == 0)
    return cat("a port is in use: ", hold, "; any other port, another process has");
  return cat("a process listens at MASTER_PORT ",
             port,
             " already, or this one has not set SO_REUSEADDR: ",
             hold);
}

}  // namespace

std::string failure_meaning(const RankExit& exit) {
  const Meaning* const meaning = meaning_in(exit);
  if (meaning == nullptr)
    return "";
  return meaning->meant == kPortInUse ? meaning_of_port_in_use(exit) : meaning->meant;
}

// A download's connection breaks too, and is tried again. So words about a connection count only
// where they are the last ones.
Account account_by_words(const RankExit& exit) {
  if (says(exit, Account::lost_peer, false))
    return Account::lost_peer;
  if (says(exit, Account::connection, true))
    return Account::connection;
  const bool names_its_signal = exit.message.starts_with("Fatal Python error: ");  // and no more
  const bool has_message = !exit.message.empty() && !names_its_signal;
  const bool has_error =
      has_message || meaning_in(exit) != nullptr || any_of(exit.last_lines, is_python_error);
  return has_error ? Account::own_error : Account::none;
}

}  // namespace muster
