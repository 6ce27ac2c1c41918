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

class ResumedObjects {
 public:
  static ResumedObjects& of_process();

  // All of them by address.
  struct Resumed {
    int64_t step = 0;                     // the training goes on after it
    std::set<const void*> restored = {};  // optimizers, and the tensors of models
    std::set<const void*> parts = {};     // what was added, restored or not
  };
  // `training` is a Checkpoints, which forgets itself at its end. On the rank that tells it has
  // restored something.
  void note(const void* training, Resumed resumed);
  // A part that is added after the training was restored is none of it.
  void add(const void* training, const void* part);
  void forget(const void* training);

  // Warns if one of `of` was restored by a training, and no training has `part`: one may begin with
  // the model of another. `kind` is that of the part, and `beside` says what was restored.
  void warn_if_left_out(const std::string& kind,
                        const std::string& beside,
                        const void* part,
                        const std::set<const void*>& of) const;

 private:
  mutable std::mutex mutex_;
  std::map<const void*, Resumed> trainings_;
};

}  // namespace muster
