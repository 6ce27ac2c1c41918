// A file is this host's own as long as it is the one that was written: a descriptor that was kept
// tells it from another host's of the same name.
#include "muster/cluster/plan_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lock.h"
#include "muster/placement/plan_json.h"

namespace muster {

PlanFile::PlanFile(const std::string& run_dir, std::string given)
    : path_(run_dir + "/plan.json"), given_(std::move(given)) {}

void PlanFile::begin_round(int round, const Plan* whole) {
  const Lock lock(mutex_);
  round_ = round;
  if (whole != nullptr)
    return write(*whole);
  remove_own();
}

void PlanFile::write_later(int round, const Plan& whole) {
  const Lock lock(mutex_);
  if (round == round_)
    write(whole);
}

void PlanFile::end() {
  const Lock lock(mutex_);
  round_.reset();
}

void PlanFile::leave() {
  const Lock lock(mutex_);
  round_.reset();
  remove_own();
}

// The file is opened before it gets its name: under that, another host may replace it at once.
void PlanFile::write(const Plan& whole) {
  const auto aside = name_aside(path_);
  write_aside(aside, path_, plan_to_json(whole));
  own_ = Fd(::open(aside.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  rename_aside(aside, path_);
}

// Another host may write the file between a look at it and its end. So it is taken away first, and
// put back if it is that host's, unless there is a newer one by then.
void PlanFile::remove_own() {
  const Fd own = std::move(own_);
  std::error_code is_none;
  const bool is_given = std::filesystem::equivalent(path_, given_, is_none);
  if (!own.valid() || is_given || !is_at(own, path_))
    return;
  const auto aside = name_aside(path_);
  if (::rename(path_.c_str(), aside.c_str()) != 0)
    return;
  const int put_back = is_at(own, aside) ? 0 : rename_if_new(aside, path_);
  if (is_one_of(put_back, 0, EEXIST)) {
    ::unlink(aside.c_str());
  } else {
    ::rename(aside.c_str(), path_.c_str());
  }
}

}  // namespace muster
