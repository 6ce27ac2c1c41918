// Calls a method of an object at the end of the graph that autograd runs now.
#pragma once

#include <torch/csrc/autograd/engine.h>

#include <memory>
#include <utility>

#include "muster/base/no_copy.h"

namespace muster {

// Autograd holds it with the graph's callbacks, and lets it go with the graph.
template <class Owner>
class GraphEnd : NoCopy {
 public:
  using Method = void (Owner::*)();

  GraphEnd(std::weak_ptr<Owner> owner, Method ended, Method cut_short)
      : owner_(std::move(owner)), ended_(ended), cut_short_(cut_short) {}
  ~GraphEnd() {
    if (has_ended_ || cut_short_ == nullptr)
      return;
    if (const auto owner = owner_.lock())
      (owner.get()->*cut_short_)();
  }

  void run() {
    const auto owner = owner_.lock();
    if (!owner)
      return;
    (owner.get()->*ended_)();
    has_ended_ = true;
  }

 private:
  const std::weak_ptr<Owner> owner_;
  const Method ended_;
  const Method cut_short_;
  bool has_ended_ = false;
};

// Calls `ended` when the graph is done, and `cut_short`, where given, when the graph goes without
// that, because of an exception. Neither is called when the owner is gone by then. Returns what
// expires with the graph. Throws: c10::Error where no graph runs in this thread.
template <class Owner>
std::weak_ptr<void> at_graph_end(std::weak_ptr<Owner> owner,
                                 void (Owner::*ended)(),
                                 void (Owner::*cut_short)() = nullptr) {
  const auto end = std::make_shared<GraphEnd<Owner>>(std::move(owner), ended, cut_short);
  torch::autograd::Engine::get_default_engine().queue_callback([end] { end->run(); });
  return end;
}

}  // namespace muster
