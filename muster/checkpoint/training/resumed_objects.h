// What the trainings of this process have resumed, and which parts they have. A Schedule, a Plateau
// or an Ema asks: one that was never added to the checkpoints begins anew beside an optimizer or a
// model that goes on, and nothing else would show it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace muster {

using Addresses = std::set<const void*>;

class ResumedObjects {
 public:
  static ResumedObjects& of_process();

  // `training` is a Checkpoints, which forgets itself at its end. A part that is added after the
  // training was restored is none of it.
  void add(const void* training, const void* part);
  void forget(const void* training);
  // The training goes on after `step`. `restored`: optimizers, and the tensors of models, by
  // address; empty on a rank that does not tell.
  void note_restored(const void* training, int64_t step, Addresses restored);

  // Warns if one of `of` was restored by a training, and no training has `part`: one may begin with
  // the model of another. `kind` is that of the part, and `beside` says what was restored.
  void warn_if_left_out(const std::string& kind,
                        const std::string& beside,
                        const void* part,
                        const Addresses& of) const;

 private:
  struct Training {
    Addresses parts{};
    int64_t step = 0;
    Addresses restored{};
  };

  mutable std::mutex mutex_;
  std::map<const void*, Training> trainings_;
};

}  // namespace muster
