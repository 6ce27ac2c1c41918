#include "muster/supervise/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/folder_owner.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr size_t kReadBytes = size_t{64} * 1024;
// A line longer than this passes in pieces.
constexpr size_t kMaxLineBytes = size_t{64} * 1024;
// A prompt or a progress bar ends in no newline: after this quiet time it is shown as it is.
constexpr std::chrono::milliseconds kShowPartialAfter{100};
// No eye follows more.
constexpr std::chrono::milliseconds kDrawLiveEvery{50};
// What others may say before somebody's last lines are out of sight: some lines.
constexpr size_t kLittle = 800;

// Lines of the terminal that live ones may take: never the last, so that something else is seen as
// well.
size_t rows_for_live_lines() {
  constexpr size_t kMost = 20;
  winsize size = {};
  for (const int fd : {STDERR_FILENO, STDOUT_FILENO}) {
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 1)
      return std::min<size_t>(size.ws_row - 1U, kMost);
  }
  return kMost;
}

}  // namespace

// One pipe.
class Output::Stream {
 public:
  Stream(Output& output, size_t id, StreamOptions options, Fd pipe)
      : output_(output),
        id_(id),
        options_(std::move(options)),
        pipe_(std::move(pipe)),
        console_(output.console(options_.console_fd)),
        collapses_(options_.collapse_as >= 0 && console_ != nullptr &&
                   ::isatty(options_.console_fd) != 0),
        lives_(collapses_ && draws_anew(get_env("TERM").value_or(""))) {
    if (!options_.file.empty()) {
      file_ = create_log(options_.folder, options_.file);
    }
    resume();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { close(); }

  // Reads once. False when there is nothing to read now or ever.
  bool read_some() {
    if (!pipe_.valid())
      return false;
    char buffer[kReadBytes];
    const ssize_t n = ::read(pipe_.get(), buffer, sizeof(buffer));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
      return errno == EINTR;
    if (n <= 0) {
      close();
      return false;
    }
    take(std::string_view(buffer, static_cast<size_t>(n)));
    return true;
  }

  void resume() {
    if (watch_ != 0 || !pipe_.valid())
      return;
    watch_ = output_.loop_.watch_readable(pipe_.get(), [this] {
      read_some();
      if (console_ != nullptr && console_->full())
        output_.loop_.cancel(std::exchange(watch_, 0));
    });
  }

  void close() {
    show_partial();
    if (!live_.empty())
      show_live("\n");
    output_.loop_.cancel(std::exchange(watch_, 0));
    pipe_.reset();
    file_.reset();
  }

  void set_prefix(const std::string& prefix) {
    if (!options_.prefix.empty())
      options_.prefix = prefix;
  }

  const std::string& tail() const { return tail_; }
  size_t shown_until() const { return shown_until_; }
  bool reads_nothing_else() const { return options_.file.empty() && options_.tail_bytes == 0; }
  Console* console() const { return console_; }

 private:
  void take(std::string_view bytes) {
    copy_to_file(bytes);
    if (options_.tail_bytes > 0) {
      tail_ += bytes.substr(bytes.size() - std::min(bytes.size(), options_.tail_bytes));
      if (tail_.size() > 2 * options_.tail_bytes)
        tail_.erase(0, tail_.size() - options_.tail_bytes);
    }
    if (console_ == nullptr)
      return;
    shown_until_ = output_.bytes_shown_ += bytes.size();
    if (options_.prefix.empty() && !options_.whole_lines) {
      console_->write(bytes);
    } else {
      show_lines(bytes);
    }
    // As if the child wrote to the closed pipe itself: it gets SIGPIPE (as in `program | head`).
    if (console_->closed() && reads_nothing_else())
      close();
  }

  void copy_to_file(std::string_view bytes) {
    while (file_.valid() && !bytes.empty()) {
      const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
      if (n > 0) {
        bytes.remove_prefix(static_cast<size_t>(n));
      } else if (errno != EINTR) {
        log(LogLevel::warn, cat("log '", options_.file, "' ends here: ", std::strerror(errno)));
        file_.reset();
      }
    }
  }

  // Cuts what is complete off `partial_` + `bytes` and shows it. A carriage return ends a line too,
  // so that progress bars live; one at the very end may be the first half of "\r\n" and waits for
  // the next bytes.
  void show_lines(std::string_view bytes) {
    partial_ += bytes;
    std::string shown;
    size_t from = 0;
    for (;;) {
      const size_t end = line_end(from);
      if (end == std::string::npos)
        break;
      add_piece(shown, std::string_view(partial_).substr(from, end - from), true);
      from = end;
    }
    partial_.erase(0, from);
    if (partial_.size() > kMaxLineBytes) {
      add_piece(shown, partial_, false);
      partial_.clear();
    }
    console_->write(shown);
    if (partial_.empty()) {
      output_.loop_.cancel(std::exchange(partial_timer_, 0));
    } else if (partial_timer_ == 0) {
      show_partial_later();
    }
  }

  // Nothing is quiet while more is in the pipe: it has paused, or its turn has not come.
  void show_partial_later() {
    partial_timer_ = output_.loop_.call_at(Clock::now() + kShowPartialAfter, [this] {
      partial_timer_ = 0;
      pollfd more = {.fd = pipe_.get(), .events = POLLIN, .revents = 0};
      const bool has_more =
          pipe_.valid() && ::poll(&more, 1, 0) > 0 && (more.revents & POLLIN) != 0;
      has_more ? show_partial_later() : show_partial();
    });
  }

  // One past the first line end at or after `from`; npos when there is none.
  size_t line_end(size_t from) const {
    const size_t newline = partial_.find('\n', from);
    const size_t stop = newline == std::string::npos ? partial_.size() : newline;
    const void* found = std::memchr(partial_.data() + from, '\r', stop - from);
    if (found == nullptr)
      return newline == std::string::npos ? newline : newline + 1;
    const size_t after = static_cast<size_t>(static_cast<const char*>(found) - partial_.data()) + 1;
    if (after == partial_.size())
      return std::string::npos;
    return partial_[after] == '\n' ? after + 1 : after;
  }

  void add_piece(std::string& shown, std::string_view text, bool ends_line) {
    if (lives_ && console_->unfinished_line_of != this &&
        live_.size() + text.size() <= kMaxLineBytes) {
      console_->write(std::exchange(shown, {}));
      return show_live(text);
    }
    if (collapses_ && ends_line && text.ends_with('\n') && console_->unfinished_line_of != this) {
      output_.collapsed_to_ = console_;
      output_.collapser_.add(
          options_.collapse_as, options_.prefix, std::string(text), Clock::now());
      return output_.show_collapsed(false);
    }
    if (collapses_)
      output_.show_collapsed(true);  // a progress bar, or a piece of a line: nothing is held back
    const bool continues = console_->unfinished_line_of == this;
    if (console_ == output_.collapsed_to_)
      shown += output_.erase_live();
    if (console_->unfinished_line_of != nullptr && !continues)
      shown += '\n';
    if (!continues && text != "\r")
      shown += options_.prefix;
    if (!live_.empty()) {  // it has become too long for a line that is drawn anew
      shown += std::exchange(live_, {});
      output_.set_live(id_, options_, "");
    }
    shown += text;
    console_->unfinished_line_of = ends_line ? nullptr : this;
  }

  // Keeps what the line shows: a carriage return begins it anew, a newline makes it one as all
  // others are.
  void show_live(std::string_view text) {
    const std::string_view body = text.substr(0, text.find_last_not_of("\r\n") + 1);
    if (std::exchange(begins_anew_, false) && !body.empty())
      live_.clear();
    live_ += body;
    if (!text.ends_with('\n')) {
      begins_anew_ = text.ends_with('\r');
      return output_.set_live(id_, options_, live_);
    }
    output_.set_live(id_, options_, "");
    output_.collapsed_to_ = console_;
    output_.collapser_.add(options_.collapse_as,
                           options_.prefix,
                           std::exchange(live_, {}).append(text.substr(body.size())),
                           Clock::now());
    output_.show_collapsed(false);
  }

  void show_partial() {
    output_.loop_.cancel(std::exchange(partial_timer_, 0));
    if (partial_.empty() || console_ == nullptr)
      return;
    std::string shown;
    add_piece(shown, partial_, partial_.back() == '\r');
    partial_.clear();
    console_->write(shown);
  }

  Output& output_;
  size_t id_;  // of the live lines
  StreamOptions options_;
  Fd pipe_;
  Fd file_;
  Console* console_;
  bool collapses_;
  bool lives_;  // an unfinished line is drawn anew, below the finished ones
  EventLoop::Handle watch_ = 0;
  EventLoop::Handle partial_timer_ = 0;
  std::string partial_;  // a line's beginning, not shown yet
  std::string live_;     // what it shows there
  bool begins_anew_ = false;
  std::string tail_;
  size_t shown_until_ = 0;
};

Output::Output(EventLoop& loop, ConsoleOptions options)
    : loop_(loop), options_(options), consoles_(3) {}

Output::~Output() {
  streams_.clear();  // what they still have goes through the rest
  loop_.cancel(collapse_timer_);
  loop_.cancel(live_timer_);
}

Console* Output::console(int fd) {
  if (fd < 1 || fd > 2)
    return nullptr;
  Console* const other = consoles_[static_cast<size_t>(3 - fd)].get();
  if (other != nullptr && other->same_as(fd))
    return other;
  auto& mine = consoles_[static_cast<size_t>(fd)];
  if (!mine) {
    mine = std::make_unique<Console>(loop_, fd, options_);
    mine->on_room = [this] {
      resume_all();
    };
  }
  return mine.get();
}

Output::Opened Output::open(StreamOptions options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    fail_errno("cannot make a pipe", errno);
  Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  // Only our end: the child's must block when full.
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  const auto free = std::find(streams_.begin(), streams_.end(), nullptr);
  const auto id = static_cast<StreamId>(free - streams_.begin());
  if (free == streams_.end())
    streams_.emplace_back();
  streams_[id] = std::make_unique<Stream>(*this, id, std::move(options), std::move(read_end));
  return {id, std::move(write_end)};
}

void Output::forget(StreamId id) {
  const std::unique_ptr<Stream> stream = std::move(streams_.at(id));
  take_rest(*stream);
  Console* const console = stream->console();
  if (console == nullptr || console->unfinished_line_of != stream.get())
    return;
  console->write("\n");
  console->unfinished_line_of = nullptr;
}

// Bounded: a descendant that escaped may still write.
void Output::take_rest(Stream& stream, const std::function<bool()>& hurry) {
  for (int i = 0; i < 64 && stream.read_some(); ++i) {
    if (hurry && stream.console() != nullptr && stream.console()->full())
      stream.console()->flush(hurry);
  }
  stream.close();
}

void Output::resume_all() {
  for (const auto& stream : streams_) {
    if (stream && stream->console() != nullptr && !stream->console()->full())
      stream->resume();
  }
}

// Shows what has waited long enough, and comes back for the rest.
void Output::show_collapsed(bool all) {
  const std::string text = collapser_.take(Clock::now(), all);
  if (!text.empty()) {
    const bool in_a_line = collapsed_to_->unfinished_line_of != nullptr;
    collapsed_to_->unfinished_line_of = nullptr;
    redraw_live((in_a_line ? "\n" : "") + text);
  }
  loop_.cancel(std::exchange(collapse_timer_, 0));
  if (const auto due = collapser_.due()) {
    collapse_timer_ = loop_.call_at(*due, [this] {
      collapse_timer_ = 0;
      show_collapsed(false);
    });
  }
}

// What a stream shows in its last line; empty: that has ended. Drawn soon.
void Output::set_live(size_t id, const StreamOptions& options, const std::string& text) {
  if (!live_.set(id, options.collapse_as, options.prefix, text))
    return;
  collapsed_to_ = console(options.console_fd);
  if (live_timer_ != 0)
    return;
  live_timer_ = loop_.call_at(Clock::now() + kDrawLiveEvery, [this] {
    live_timer_ = 0;
    if (collapsed_to_->unfinished_line_of == nullptr)
      redraw_live("");
  });
}

// With the finished lines `above` above them.
void Output::redraw_live(const std::string& above) {
  const std::string gone = erase_live();
  live_drawn_ = !live_.empty();
  collapsed_to_->write(cat(gone, above, live_.draw(rows_for_live_lines())));
}

std::string Output::erase_live() {
  return std::exchange(live_drawn_, false) ? LiveLines::erase() : std::string();
}

void Output::set_prefix(StreamId id, const std::string& prefix) {
  streams_.at(id)->set_prefix(prefix);
}

void Output::finish(const std::function<bool()>& hurry) {
  for (const auto& stream : streams_) {
    if (stream)
      take_rest(*stream, hurry ? hurry : [] { return false; });
  }
  show_collapsed(true);
  if (live_drawn_)
    collapsed_to_->write(erase_live());
  for (const auto& console : consoles_) {
    if (console)
      console->flush(hurry);
  }
}

std::vector<std::string> Output::last_lines(StreamId id, size_t count) const {
  std::vector<std::string> lines = split(streams_.at(id)->tail(), '\n');
  if (!lines.empty() && lines.back().empty())
    lines.pop_back();
  if (lines.size() > count)
    lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(count));
  return lines;
}

bool Output::in_sight(StreamId id) const {
  const Stream& stream = *streams_.at(id);
  return stream.console() != nullptr && bytes_shown_ - stream.shown_until() <= kLittle;
}

}  // namespace muster
