// The library muster_mpi_…: everything of muster that needs MPI. comm/mpi/loader.cc loads it. A
// group is three communicators: for collectives, for messages and for what is said of those. Its
// ranks first tell each other through the store which process of MPI_COMM_WORLD each of them is.
// All calls of MPI are made in the engine's thread.
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/comm/mpi/engine.h"
#include "muster/comm/mpi/plugin.h"
#include "muster/shm/mailbox.h"

namespace muster::mpi {

namespace {

constexpr std::chrono::seconds kParting{10};

// One group over MPI. The engine is the process's, and outlives it.
class MpiCarrier : public Carrier {
 public:
  MpiCarrier(Engine& engine, std::shared_ptr<Group> group)
      : engine_(engine), group_(std::move(group)) {
    engine_.opened();
  }
  // Without leave() the group was not left in good order.
  ~MpiCarrier() override {
    if (left_)
      return;
    MpiCarrier::give_up();
    engine_.closed(false);
  }

  // The engine's thread uses nothing of the carrier's, which may be gone by then.
  void submit(Call call) override {
    for (const Request& request : call.requests)
      shm::check_reduction(request);
    const Lock lock(mutex_);  // numbers are given in the order of the calls
    ++sequence_;
    auto requests = std::make_shared<std::vector<Request>>(std::move(call.requests));
    post(
        cat(shm::to_string(requests->at(0).kind), " #", sequence_),
        call.deadline,
        [requests, group = group_, &engine = engine_](Flight& flight) {
          for (const Request& request : *requests)
            start(request, group->communicators, engine.reductions(), flight);
        },
        std::move(call.done));
  }

  // Messages go over a communicator of their own, so that they never meet a collective's.
  void send(int to, int tag, Part data, milliseconds timeout, Done done) override {
    check_tag("send", tag);
    post(
        cat("send to ", to, " (tag ", tag, ")"),
        Deadline(timeout),
        [=, group = group_](Flight& flight) {
          start_message(data, to, tag, group->communicators, flight);
        },
        std::move(done));
  }

  void receive(int from, int tag, Part data, milliseconds timeout, Done done) override {
    check_tag("recv", tag);
    const bool any = from == shm::kAnySource;
    if (any && data.bytes > kPieceBytes) {
      throw invalid_argument("recv: expected at most ",
                             kPieceBytes,
                             " bytes from any rank, got ",
                             data.bytes,
                             "; name the rank, or send less at once");
    }
    post(
        cat("recv from ", any ? "any rank" : cat(from), " (tag ", tag, ")"),
        Deadline(timeout),
        [=, group = group_](Flight& flight) {
          start_receive_message(
              data, any ? MPI_ANY_SOURCE : from, tag, group->communicators, flight);
        },
        std::move(done));
  }

  // The engine ends what the group has under way, in its own thread.
  void give_up() override {
    engine_.give_up(group_,
                    std::make_exception_ptr(failed_precondition(
                        "mpi: this rank (", where(), ") has given the group up")));
  }

  // The communicators are freed where nothing is under way any more. MPI_Comm_free is collective:
  // all ranks leave.
  void leave() override {
    left_ = true;
    const auto in_good_order = std::make_shared<bool>(false);
    engine_.run_and_wait("MPI_Comm_free", kParting, [in_good_order, group = group_] {
      *in_good_order = group->under_way == 0;
      if (!*in_good_order)
        return;
      check(MPI_Comm_free(&group->communicators.frames), "MPI_Comm_free");
      check(MPI_Comm_free(&group->communicators.messages), "MPI_Comm_free");
      check(MPI_Comm_free(&group->communicators.collectives), "MPI_Comm_free");
    });
    engine_.closed(*in_good_order);
  }

 private:
  std::string where() const {
    return cat("rank ", group_->communicators.rank, " of ", group_->communicators.size);
  }

  // MPI's implementations have different highest tags.
  void check_tag(const char* operation, int tag) const {
    if (tag >= 0 && tag <= engine_.world().highest_tag)
      return;
    throw invalid_argument(operation,
                           ": expected a tag from 0 to ",
                           engine_.world().highest_tag,
                           " (the highest of this MPI), got ",
                           tag);
  }

  // Gives a call to the engine, under a name for its errors.
  void post(const std::string& name,
            const Deadline& deadline,
            std::function<void(Flight&)> start,
            Done done) {
    group_->rethrow_if_broken();
    engine_.post({.name = cat(name, " on ", where()),
                  .group = group_,
                  .deadline = deadline,
                  .start = std::move(start),
                  .done = std::move(done)});
  }

  Engine& engine_;
  const std::shared_ptr<Group> group_;
  std::mutex mutex_;
  uint64_t sequence_ = 0;
  bool left_ = false;
};

struct Place {
  int rank = -1;
  int size = 0;
};

// Reads "3 8"; another text gives no place.
Place place_from(const std::string& text) {
  const auto words = split(text, ' ');
  if (words.size() != 2)
    return {};
  return {.rank = static_cast<int>(parse_int(words[0]).value_or(-1)),
          .size = static_cast<int>(parse_int(words[1]).value_or(0))};
}

// Returns which process of MPI_COMM_WORLD every rank of the group is.
std::vector<Place> tell_places(const MpiRendezvous& rendezvous, const Engine::World& self) {
  rendezvous.exchange.set(cat("process/", rendezvous.rank), cat(self.rank, " ", self.size));
  return mapped_indices(rendezvous.size, [&](int rank) {
    return place_from(rendezvous.exchange.get(cat("process/", rank)));
  });
}

// The ranks of a job are MPI's processes, number by number; those of a part of it are any of them.
void check_places(const MpiRendezvous& rendezvous,
                  const std::vector<Place>& places,
                  const std::string& library) {
  std::set<int> distinct;
  const auto is_right = [&](const Place& place, int rank) {
    if (place.rank < 0 || place.rank >= place.size)
      return false;
    if (rendezvous.of_all_ranks)
      return place.rank == rank && place.size == rendezvous.size;
    return place.size == places[0].size && distinct.insert(place.rank).second;
  };
  for (const int rank : indices_below(rendezvous.size)) {
    const Place& place = places[rank];
    if (is_right(place, rank))
      continue;
    const std::string expected = rendezvous.of_all_ranks
                                     ? cat("process ", rank, " of ", rendezvous.size)
                                     : "a process of its own";
    throw invalid_argument("mpi: expected rank ",
                           rank,
                           " of ",
                           rendezvous.size,
                           " to be ",
                           expected,
                           " in MPI_COMM_WORLD, got process ",
                           place.rank,
                           " of ",
                           place.size,
                           " (",
                           library,
                           "); start all ranks by one mpirun of that MPI, and let it number them");
  }
}

// Makes the group's communicators. MPI_Comm_create_group is collective over the members alone.
std::unique_ptr<Carrier> connect(const MpiRendezvous& rendezvous) {
  Engine& engine = Engine::of_process(rendezvous.timeout);
  const auto places = tell_places(rendezvous, engine.world());
  check_places(rendezvous, places, engine.world().library);
  auto group = std::make_shared<Group>();
  group->communicators.rank = rendezvous.rank;
  group->communicators.size = rendezvous.size;
  Ints ranks = mapped(places, &Place::rank);
  engine.run_and_wait("MPI_Comm_create_group", rendezvous.timeout, [group, ranks] {
    MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    check(MPI_Group_incl(world, group->communicators.size, ranks.data(), &members),
          "MPI_Group_incl");
    for (MPI_Comm* made : {&group->communicators.collectives,
                           &group->communicators.messages,
                           &group->communicators.frames}) {
      check(MPI_Comm_create_group(MPI_COMM_WORLD, members, 0, made), "MPI_Comm_create_group");
      check(MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    MPI_Group_free(&members);
    MPI_Group_free(&world);
  });
  return std::make_unique<MpiCarrier>(engine, std::move(group));
}

constexpr MpiPlugin kPlugin{.connect = connect};

}  // namespace

}  // namespace muster::mpi

extern "C" __attribute__((visibility("default"))) const muster::MpiPlugin* muster_mpi_plugin() {
  return &muster::mpi::kPlugin;
}

extern "C" __attribute__((visibility("default"))) const char* muster_plugin_version() {
  return MUSTER_VERSION;
}
