// Several loaders at once, a batch of each a step: real and generated pictures of a GAN, labelled
// and unlabelled samples. Each goes through its own data at its own pace; they have one place in
// the training.
//
//   muster::ZipLoaders both(labelled, unlabelled);  // these must outlive it
//   checkpoints.add("data", both);
//   for (const auto& [known, other] : both.steps(10000))
//     step.run(1, known.last, [&] {
//       return loss_of(known) * known.weight + loss_of(other) * other.weight;
//     });
//
// With `accumulate` each step has that many batches of all, over the ends of their epochs.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/never.h"
#include "muster/data/loader.h"
#include "muster/data/stream_loader.h"

namespace muster {

// A DataLoader or a StreamLoader.
template <class Loader>
concept IsLoader = requires(Loader& loader) {
  typename Loader::Batch;
  typename Loader::Iterator;
  loader.steps(int64_t{1});
  loader.whole_steps(int64_t{1});
  loader.position();
  { loader.accumulate() } -> std::convertible_to<int64_t>;
};

namespace zipping {

// Throws: invalid_argument for loaders of different numbers of batches a step, whose steps would
// end at different times.
void check_accumulate(const Int64s& of_loaders);
// Throws: invalid_argument for a loader that is there twice: each step would take two of its own.
void check_distinct(const std::vector<const void*>& loaders);
// Says, once, how the epochs of the first loader and of the others go together, by their numbers of
// batches. 0: not known.
void tell_of_epochs(const Int64s& batches);

template <class Loader>
int64_t batches_of_epoch(const Loader& loader) {
  if constexpr (requires { loader.num_batches(); }) {
    return loader.num_batches();
  } else {
    return 0;
  }
}

}  // namespace zipping

template <class First, class... Others>
class ZipLoaders {
 public:
  using Batches = std::tuple<const typename First::Batch&, const typename Others::Batch&...>;

  // Throws: invalid_argument for loaders of different accumulate, and for one that is there twice.
  explicit ZipLoaders(First& first, Others&... others) : loaders_(first, others...) {
    zipping::check_distinct({&first, &others...});
    zipping::check_accumulate({first.accumulate(), others.accumulate()...});
  }

  using All = std::index_sequence_for<First, Others...>;

  class Iterator {
   public:
    using value_type = Batches;
    using difference_type = std::ptrdiff_t;

    Batches operator*() const {
      return std::apply([](const auto&... at) { return Batches(**at...); }, at_);
    }
    // The first one that is at its end ends the loop. Those after it then have not moved, so that
    // they lose no batch.
    Iterator& operator++() {
      is_over_ = !move_all(All());
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return is_over_; }

   private:
    friend class ZipLoaders;
    Iterator(ZipLoaders& zip, std::optional<int64_t> steps) : zip_(&zip), steps_(steps) {
      is_over_ = !open_all(All());
    }

    // Opens a loader; false where it is at its end. Without steps, the first loader goes through
    // its own epoch, unless a step of several batches may go over its end.
    template <size_t I>
    bool open() {
      auto& at = std::get<I>(at_);
      auto& loader = std::get<I>(zip_->loaders_);
      constexpr auto kEndless = INT64_MAX;
      if (I == 0 && !steps_ && loader.accumulate() == 1) {
        at.emplace(loader.begin());
      } else {
        at.emplace(
            loader.whole_steps(steps_ ? loader.position().step + *steps_ : kEndless).begin());
        if (I == 0 && !steps_)
          epoch_ = at->epoch();
      }
      return *at != std::default_sentinel;
    }

    // Moves a loader on; false where it is at its end.
    template <size_t I>
    bool move() {
      auto& at = *std::get<I>(at_);
      if (I == 0 && epoch_ && at->last && has_ended_epoch())
        return false;
      ++at;
      return at != std::default_sentinel;
    }

    // One loader after the other, up to one that is at its end.
    template <size_t... I>
    bool open_all(std::index_sequence<I...>) {
      return (open<I>() && ...);
    }
    template <size_t... I>
    bool move_all(std::index_sequence<I...>) {
      return (move<I>() && ...);
    }

    // Whether a whole step has ended the first loader's epoch. A stream has to look for a further
    // batch.
    bool has_ended_epoch() {
      if (std::get<0>(zip_->loaders_).position().epoch != *epoch_)
        return true;
      auto& at = *std::get<0>(at_);
      if constexpr (requires { at.leave_ended_epoch(); })
        return at.leave_ended_epoch();
      return false;
    }

    ZipLoaders* zip_;
    std::optional<int64_t> steps_;  // of all loaders; nothing: an epoch of the first
    std::tuple<std::optional<typename First::Iterator>, std::optional<typename Others::Iterator>...>
        at_;
    std::optional<int64_t> epoch_;  // the first loader's to end in, if a step has several batches
    bool is_over_ = false;
  };

  // An epoch of the first loader. The others go on where they are, over the ends of their own
  // epochs, and are there in the next loop: no sample is left out because epochs have different
  // lengths. To go through all of the longest, pass it first. With `accumulate` the last step takes
  // what it lacks from the next epoch of the first loader, and a loop that is left goes on there.
  Iterator begin() & {
    tell_of_epochs();
    return {*this, std::nullopt};
  }
  std::default_sentinel_t end() const { return {}; }

  // From the current step to step `until` of the first loader, counted from the start of training,
  // over as many epochs of each as that takes.
  auto steps(int64_t until) & {
    struct Steps {
      ZipLoaders& zip;
      int64_t until;
      Iterator begin() { return {zip, std::max<int64_t>(0, until - zip.step())}; }
      std::default_sentinel_t end() const { return {}; }
    };
    return Steps{*this, until};
  }

  // Steps since the start of training.
  int64_t step() const { return std::get<0>(loaders_).position().step; }

  // The positions of all, after the last step: one place in the training. A StreamLoader's is that
  // of this rank. Checkpoints::add saves and restores it.
  using Position = std::tuple<std::decay_t<decltype(std::declval<First&>().position())>,
                              std::decay_t<decltype(std::declval<Others&>().position())>...>;
  Position position() const {
    return std::apply([](auto&... loader) { return Position(loader.position()...); }, loaders_);
  }
  // Throws: as each loader's restore().
  void restore(const Position& position) { restore(position, All()); }

  // The loaders that were given.
  const std::tuple<First&, Others&...>& loaders() const { return loaders_; }

 private:
  template <size_t... I>
  void restore(const Position& position, std::index_sequence<I...>) {
    (std::get<I>(loaders_).restore(std::get<I>(position)), ...);
  }
  void tell_of_epochs() {
    if (std::exchange(has_told_, true))
      return;
    zipping::tell_of_epochs(std::apply(
        [](auto&... loader) { return Int64s{zipping::batches_of_epoch(loader)...}; }, loaders_));
  }

  std::tuple<First&, Others&...> loaders_;
  bool has_told_ = false;
};

// Other arguments than loaders: this text is the compiler's whole answer.
template <class First, class... Others>
  requires(sizeof...(Others) == 0 || !IsLoader<First> || (!IsLoader<Others> || ...))
class ZipLoaders<First, Others...> {
  static_assert(kNever<First>,
                "ZipLoaders takes two or more loaders (IsLoader): DataLoaders and StreamLoaders "
                "that outlive it");

 public:
  explicit ZipLoaders(const auto&...) {}
};

template <class... Given>
ZipLoaders(Given&...) -> ZipLoaders<Given...>;

}  // namespace muster
