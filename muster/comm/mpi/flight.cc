// MPI_Testall tells either that all requests are over, or that some have failed; then each status
// has its own code. A receive of a message that is too long is the caller's mistake, and leaves MPI
// and the group as good as before: it is told when the other requests are over too.
#include "muster/comm/mpi/flight.h"

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/comm/mpi/mappings.h"

namespace muster::mpi {

bool Flight::test() {
  statuses_.resize(requests_.size());
  int over = 0;
  const auto count = static_cast<int>(requests_.size());
  const int code = MPI_Testall(count, requests_.data(), &over, statuses_.data());
  if (code != MPI_SUCCESS && class_of(code) != MPI_ERR_IN_STATUS)
    check(code, "MPI_Testall");
  if (code == MPI_SUCCESS && over == 0)
    return false;
  for (const size_t i : indices_of(requests_)) {
    const int own = code == MPI_SUCCESS ? MPI_SUCCESS : statuses_[i].MPI_ERROR;
    if (own != MPI_ERR_PENDING)
      check_one(i, own);
  }
  if (!idle())
    return false;
  if (sent_ && !fits(wanted_, *sent_))
    throw misfit(wanted_, *sent_, source_, rank_);
  if (refusal_)
    throw Error(*refusal_);
  for (const auto& action : at_end_)
    action();
  return true;
}

// What is wrong with a message is kept. A request that was looked at is no message any more.
void Flight::check_one(size_t i, int code) {
  try {
    check_request(i, code);
    if (expected_[i] != kNotAMessage)
      check_message(i, statuses_[i]);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument)
      throw;
    refusal_ = error;
  }
  expected_[i] = kNotAMessage;
}

void Flight::check_request(size_t i, int code) {
  if (code == MPI_SUCCESS)
    return;
  if (class_of(code) == MPI_ERR_TRUNCATE) {
    throw invalid_argument("expected a message of ",
                           expected_[i],
                           " bytes, got a longer one; send and receive tensors of one size");
  }
  check(code, "an operation of MPI");
}

void Flight::check_message(size_t i, const MPI_Status& status) {
  int bytes = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  source_ = status.MPI_SOURCE;
  if (static_cast<size_t>(bytes) == expected_[i])
    return;
  throw invalid_argument("expected a message of ",
                         expected_[i],
                         " bytes, got ",
                         bytes,
                         " from rank ",
                         source_,
                         "; send and receive tensors of one size");
}

// MPI sets a request to MPI_REQUEST_NULL when it is over.
bool Flight::idle() const {
  return all_of(requests_, [](const MPI_Request& request) { return request == MPI_REQUEST_NULL; });
}

}  // namespace muster::mpi
