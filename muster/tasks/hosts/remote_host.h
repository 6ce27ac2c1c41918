// Another machine as a host that tasks run on: a connection to a server there (server.h), which a
// command such as ssh or srun has started and whose standard input and output carry the messages.
// What its tasks print comes over the connection into their logs here. Made by the command before a
// run, used by the runner; knows nothing of ssh and srun.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/strings.h"
#include "muster/supervise/child.h"
#include "muster/tasks/hosts/line_channel.h"
#include "muster/tasks/hosts/remote_message.h"

namespace muster {

struct RemoteHostOptions {
  Strings argv{};             // reaches the host and starts the server there
  Environment environment{};  // of that command
  RemoteHello hello{};        // its name is the host's
  std::string advice{};       // what to look at when no answer comes
};

// What the event loop calls to tell the runner.
struct RemoteEvents {
  std::function<void(TaskEnd end)> on_end{};
  std::function<void(int gpu, int units, const std::string& by)> on_held{};
  std::function<void(int gpu, uint64_t bytes)> on_memory{};  // that other programs use
  TextFunction on_note{};                                    // a line for people
  TextFunction on_lost{};                                    // before its tasks' ends
};

class RemoteHost : public TaskHost {
 public:
  // Starts the command and says hello. Throws: SpawnError; io.
  explicit RemoteHost(RemoteHostOptions options);
  // Kills the command: the server finds the end of its input. Blocking: until that is gone, a
  // second at most.
  ~RemoteHost() override;

  const RemoteHostOptions& options() const { return options_; }
  const std::string& name() const { return options_.hello.name; }
  pid_t pid() const { return child_.pid; }  // the command's; -1: it has been waited for

  // Listens until there is an inventory or a problem.
  void listen(EventLoop& loop);
  bool answered() const { return inventory_ || !problem_.empty(); }
  const std::optional<Inventory>& inventory() const { return inventory_; }
  const RemoteHoldings& held_before() const { return held_before_; }  // if the hello asked
  const std::string& problem() const { return problem_; }

  // Whether the server there said itself that it cannot run tasks.
  enum class Refusal {
    none,
    unfit,    // as of another version, or without the folder
    stopped,  // somebody there has stopped it
  };
  Refusal refusal() const { return refusal_; }

  // Says in place of a problem that nothing came in that time, with what the command printed.
  std::string how_silent(milliseconds time) const;

  // Tells the server that the run begins. It is the pool's `host`. The loop must outlive the call
  // of `close`.
  void begin(const RemoteBegin& run,
             const DevicePool& pool,
             int host,
             EventLoop& loop,
             RemoteEvents events);

  // Whether it has told what other jobs hold of its GPUs, or is lost. Nothing may be started
  // before.
  bool ready() const { return ready_ || !problem_.empty(); }

  // The server reserves, where the GPUs are.
  bool reserve(const StartOrder& /*order*/) override { return true; }
  void start(const StartOrder& order) override;
  void end(int id, milliseconds grace) override;
  std::string held() const override;

  // Sends all tasks a signal that is only passed on.
  void signal_all(int signal);

  // To be called when nothing more is asked of it.
  void close();

  // Kills the command. Nobody is told of anything any more.
  void abandon();

  // Whether the command has ended. Blocking: at most `patience`.
  bool wait_for_end(milliseconds patience);

 private:
  struct Remote {  // a task there
    int log_fd = -1;
    bool log_failed = false;
  };

  void leave_loop();
  void on_line(const std::string& line);
  void on_end_of_output(const std::string& why);
  bool has_begun();
  void take(const RemoteCannot& cannot);
  void take(const RemoteAlive& alive);
  void take(const RemoteInventory& host);
  void take(const RemoteOutput& output);
  void take(const RemoteHeld& held);
  void take(const RemoteMemory& memory);
  void take(const RemoteEnded& ended);
  template <class Other>
  void take(const Other& message);
  void read_errors();
  void take_error_line(const std::string& line);
  void keep_alive();
  void give_up(const std::string& why);
  bool has_ended_within(milliseconds patience) const;
  std::string how_it_ended();

  RemoteHostOptions options_;
  Child child_;
  std::unique_ptr<LineChannel> channel_;
  Fd errors_;
  std::string error_text_;  // of a line that is not whole
  std::string last_error_;  // the last line
  int num_noise_ = 0;       // lines before the first message
  EventLoop* loop_ = nullptr;
  EventLoop::Handle watches_errors_ = 0;
  EventLoop::Handle alive_timer_ = 0;
  bool ready_ = false;
  TimePoint heard_ = Clock::now();
  TimePoint ticked_ = Clock::now();
  std::optional<Inventory> inventory_;
  RemoteHoldings held_before_;
  std::string problem_;
  Refusal refusal_ = Refusal::none;
  const DevicePool* pool_ = nullptr;
  int host_ = -1;
  RemoteEvents events_;
  std::unordered_map<int, Remote> tasks_;  // by order
  std::map<int, std::string> held_;        // by the GPU's place
};

using RemoteHosts = std::vector<std::unique_ptr<RemoteHost>>;

// Starts all at once and waits until each has told what it has. Blocking: at most a minute. Throws:
// unavailable naming every host that has not.
RemoteHosts connect_hosts(const std::vector<RemoteHostOptions>& hosts);

// Ends all; null is passed over. Blocking: some seconds at most.
void close_hosts(const RemoteHosts& hosts);

}  // namespace muster
