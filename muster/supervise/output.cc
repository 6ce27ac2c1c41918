// How it works: a Stream reads one pipe and cuts its bytes into lines. On a terminal, lines that
// several streams say at the same time become one (LineCollapser), and unfinished lines are drawn
// below the finished ones (LiveLines); elsewhere lines go to the console as they come. A console
// that is full pauses its streams, so that the pipes fill and the children wait for the reader.
#include "muster/supervise/output.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/folder_owner.h"
#include "muster/base/log.h"

namespace muster {

namespace {

constexpr size_t kReadBytes = size_t{64} * 1024;
// A line longer than this passes in pieces.
constexpr size_t kMaxLineBytes = size_t{64} * 1024;
// A prompt or a progress bar ends in no newline: after this quiet time it is shown as it is.
constexpr milliseconds kShowPartialAfter{100};
// No eye follows more.
constexpr milliseconds kDrawLiveEvery{50};
// Others may say this much, some lines, before somebody's last lines are out of sight.
constexpr size_t kLittle = 800;

// Live lines never take the terminal's last row, so that something else is seen as well.
size_t rows_for_live_lines() {
  constexpr size_t kMost = 20;
  winsize size{};
  for (const int fd : {STDERR_FILENO, STDOUT_FILENO}) {
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 1)
      return std::min<size_t>(size.ws_row - 1U, kMost);
  }
  return kMost;
}

}  // namespace

// One child's pipe, with all the places that its bytes go to: a file, the tail that is kept for a
// report, and a console.
class Output::Stream : NoCopy {
 public:
  Stream(Output& output, size_t id, StreamOptions options, Fd pipe)
      : output_(output),
        id_(id),
        options_(std::move(options)),
        pipe_(std::move(pipe)),
        console_(output.console(options_.console_fd)),
        collapses_(options_.collapse_as >= 0 && console_ != nullptr &&
                   ::isatty(options_.console_fd) != 0),
        lives_(collapses_ && draws_anew(options_.console_fd)) {
    if (!options_.file.empty())
      file_ = create_log(options_.folder, options_.file);
    resume();
  }
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
    take(std::string_view(buffer, n));
    return true;
  }

  // Reads whenever there is something, until the console is full.
  void resume() {
    if (watch_ != 0 || !pipe_.valid())
      return;
    watch_ = output_.loop_.watch_readable(pipe_.get(), [this] {
      read_some();
      if (console_is_full())
        output_.loop_.cancel(watch_);
    });
  }

  // Shows what is left of a line; nothing is read any more.
  void close() {
    show_partial();
    if (!live_.empty())
      show_live("\n");
    output_.loop_.cancel(watch_);
    pipe_.reset();
    file_.reset();
  }

  void set_prefix(const std::string& prefix) {
    if (!options_.prefix.empty())
      options_.prefix = prefix;
  }

  const std::string& tail() const { return tail_; }
  size_t shown_until() const { return shown_until_; }
  Console* console() const { return console_; }
  bool console_is_full() const { return console_ != nullptr && console_->full(); }

 private:
  void take(std::string_view bytes) {
    copy_to_file(bytes);
    if (options_.tail_bytes > 0)
      keep_tail(bytes);
    if (console_ == nullptr)
      return;
    shown_until_ = output_.bytes_shown_ += bytes.size();
    const bool passes_straight_through = options_.prefix.empty() && !options_.whole_lines;
    if (passes_straight_through)
      console_->write(bytes);
    else
      show_lines(bytes);
    // As if the child wrote to the closed pipe itself: it gets SIGPIPE (as in `program | head`).
    const bool only_shown = options_.file.empty() && options_.tail_bytes == 0;
    if (console_->closed() && only_shown)
      close();
  }

  // Up to twice of what is wanted is kept, so that the tail is seldom moved.
  void keep_tail(std::string_view bytes) {
    tail_ += bytes.substr(bytes.size() - std::min(bytes.size(), options_.tail_bytes));
    if (tail_.size() > 2 * options_.tail_bytes)
      tail_.erase(0, tail_.size() - options_.tail_bytes);
  }

  // A file that cannot be written ends there; the child goes on.
  void copy_to_file(std::string_view bytes) {
    while (file_.valid() && !bytes.empty()) {
      const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
      if (n > 0) {
        bytes.remove_prefix(n);
      } else if (errno != EINTR) {
        log_warning("log '", options_.file, "' ends here: ", std::strerror(errno));
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
    for (size_t end = 0; (end = line_end(from)) != npos; from = end)
      add_piece(shown, std::string_view(partial_).substr(from, end - from), true);
    partial_.erase(0, from);
    if (partial_.size() > kMaxLineBytes) {
      add_piece(shown, partial_, false);
      partial_.clear();
    }
    console_->write(shown);
    if (partial_.empty())
      output_.loop_.cancel(partial_timer_);
    else if (partial_timer_ == 0)
      show_partial_later();
  }

  // A stream is not quiet while more is in its pipe: it has paused, or its turn has not come.
  void show_partial_later() {
    partial_timer_ = output_.loop_.call_at(Clock::now() + kShowPartialAfter, [this] {
      partial_timer_ = 0;
      if (has_more_to_read())
        show_partial_later();
      else
        show_partial();
    });
  }

  bool has_more_to_read() const {
    pollfd more = {.fd = pipe_.get(), .events = POLLIN, .revents = 0};
    return pipe_.valid() && ::poll(&more, 1, 0) > 0 && (more.revents & POLLIN) != 0;
  }

  // The place after the first line end at or after `from`; npos when there is none.
  size_t line_end(size_t from) const {
    const size_t newline = partial_.find('\n', from);
    const std::string_view line = std::string_view(partial_).substr(from, newline - from);
    const size_t carriage_return = line.find('\r');
    if (carriage_return == npos)
      return newline == npos ? newline : newline + 1;
    const size_t after = from + carriage_return + 1;
    if (after == partial_.size())
      return npos;
    return partial_[after] == '\n' ? after + 1 : after;
  }

  // The console shows a line's beginning that this stream wrote.
  bool has_begun_line() const { return console_->unfinished_line_of == this; }

  // Shows a line or a piece of one: as a live line, held back for others that say the same, or at
  // the end of `shown`, which the caller writes.
  void add_piece(std::string& shown, std::string_view text, bool ends_line) {
    const bool is_short = live_.size() + text.size() <= kMaxLineBytes;
    if (lives_ && is_short && !has_begun_line()) {
      console_->write(std::exchange(shown, {}));
      return show_live(text);
    }
    const bool is_whole = ends_line && text.ends_with('\n');
    if (collapses_ && is_whole && !has_begun_line())
      return collapse(std::string(text));
    if (collapses_)
      output_.show_collapsed(true);  // a progress bar, or a piece of a line: nothing is held back
    append_piece(shown, text, ends_line);
  }

  void append_piece(std::string& shown, std::string_view text, bool ends_line) {
    const bool continues = has_begun_line();
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

  // Holds a finished line back for a moment, in which others may say the same.
  void collapse(const std::string& line) {
    output_.collapsed_to_ = console_;
    output_.collapser_.add(options_.collapse_as, options_.prefix, line, Clock::now());
    output_.show_collapsed(false);
  }

  // Keeps what the live line shows: a carriage return begins it anew, a newline finishes it.
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
    collapse(std::exchange(live_, {}).append(text.substr(body.size())));
  }

  // Shows a line's beginning as it is.
  void show_partial() {
    output_.loop_.cancel(partial_timer_);
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

Output::Output(EventLoop& loop, ConsoleOptions options) : loop_(loop), options_(options) {}

Output::~Output() {
  streams_.clear();  // what they still have goes through the rest
  loop_.cancel(collapse_timer_);
  loop_.cancel(live_timer_);
}

// Standard output and error that lead to the same place share a console, so that their lines do not
// mix.
Console* Output::console(int fd) {
  if (fd != STDOUT_FILENO && fd != STDERR_FILENO)
    return nullptr;
  Console* const other = consoles_[STDOUT_FILENO + STDERR_FILENO - fd].get();
  if (other != nullptr && other->same_as(fd))
    return other;
  auto& mine = consoles_[fd];
  if (!mine) {
    mine = std::make_unique<Console>(loop_, fd, options_);
    mine->on_room = [this] {
      resume_all();
    };
  }
  return mine.get();
}

Output::Opened Output::open(StreamOptions options) {
  Pipe pipe = open_pipe();
  // Only our end: the child's must block when full.
  ::fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK);
  const auto free = std::find(streams_.begin(), streams_.end(), nullptr);
  const StreamId id = free - streams_.begin();
  if (free == streams_.end())
    streams_.emplace_back();
  streams_[id] = std::make_unique<Stream>(*this, id, std::move(options), std::move(pipe.read_end));
  return {id, std::move(pipe.write_end)};
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

// The number of reads is bounded, since a descendant that escaped may still write. A full console
// is emptied in between only for who gives `hurry`.
void Output::take_rest(Stream& stream, const Condition& hurry) {
  constexpr int kMostReads = 64;
  for (int i = 0; i < kMostReads && stream.read_some(); ++i) {
    if (hurry && stream.console_is_full())
      stream.console()->flush(hurry);
  }
  stream.close();
}

void Output::resume_all() {
  for (const auto& stream : streams_) {
    const bool is_shown = stream && stream->console() != nullptr;
    if (is_shown && !stream->console_is_full())
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
  loop_.cancel(collapse_timer_);
  if (const auto due = collapser_.due()) {
    collapse_timer_ = loop_.call_at(*due, [this] {
      collapse_timer_ = 0;
      show_collapsed(false);
    });
  }
}

// The last line of a stream shows `text` from now on; empty: that line has ended. It is drawn soon.
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

// Draws the live lines again, with the finished lines `above` above them.
void Output::redraw_live(const std::string& above) {
  const auto gone = erase_live();
  live_drawn_ = !live_.empty();
  collapsed_to_->write(cat(gone, above, live_.draw(rows_for_live_lines())));
}

// The caller writes what this returns before anything else.
std::string Output::erase_live() {
  return std::exchange(live_drawn_, false) ? LiveLines::erase() : std::string();
}

void Output::set_prefix(StreamId id, const std::string& prefix) {
  streams_.at(id)->set_prefix(prefix);
}

// The timer wakes the loop, in which a flush waits for the reader.
void Output::finish(const Condition& hurry, OptionalTime until) {
  EventLoop::Handle timer = 0;
  if (until)
    timer = loop_.call_at(*until, [] {});
  const auto is_late = [&] {
    return (hurry && hurry()) || (until && Clock::now() >= *until);
  };
  flush_all(is_late);
  loop_.cancel(timer);
}

void Output::flush_all(const Condition& is_late) {
  for (const auto& stream : streams_) {
    if (stream)
      take_rest(*stream, is_late);
  }
  show_collapsed(true);
  if (live_drawn_)
    collapsed_to_->write(erase_live());
  for (const auto& console : consoles_) {
    if (console)
      console->flush(is_late);
  }
}

Strings Output::last_lines(StreamId id, size_t count) const {
  Strings lines = split(streams_.at(id)->tail(), '\n');
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
