// MPI's own reductions differ from shared memory's (NaN in min and max, sums of bool), so that each
// is a user's operation here, which runs shared memory's loop over two sources.
#include "muster/comm/mpi/mappings.h"

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"

namespace muster::mpi {

namespace {

// A type of shared memory's and MPI's type for it.
struct Named {
  shm::Type type;
  MPI_Datatype mpi;
};

// The table is no constant: in Open MPI its values are addresses of another library.
const Named* types() {
  static const Named all[] = {{shm::Type::f64, MPI_DOUBLE},
                              {shm::Type::f32, MPI_FLOAT},
                              {shm::Type::i8, MPI_INT8_T},
                              {shm::Type::u8, MPI_UINT8_T},
                              {shm::Type::i16, MPI_INT16_T},
                              {shm::Type::i32, MPI_INT32_T},
                              {shm::Type::i64, MPI_INT64_T},
                              {shm::Type::boolean, MPI_C_BOOL},
                              {shm::Type::c64, MPI_C_FLOAT_COMPLEX},
                              {shm::Type::c128, MPI_C_DOUBLE_COMPLEX},
                              {shm::Type::other, MPI_BYTE}};
  return all;
}

// MPI calls this. It has no way to fail, and submit() has seen that the operation exists.
template <shm::Op op>
void combine(void* in, void* in_and_out, int* count, MPI_Datatype* type) {
  const Named* named = types();
  while (named->type != shm::Type::other && named->mpi != *type)
    ++named;
  const void* const sources[] = {in, in_and_out};
  shm::reduce_for(named->type, op)(in_and_out, sources, 2, *count);
}

}  // namespace

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
    return cat("MPI error ", code);
  return {text, static_cast<size_t>(length)};
}

int class_of(int code) {
  int found = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &found);
  return found;
}

void check(int code, const char* what) {
  if (code == MPI_SUCCESS)
    return;
#ifdef MPIX_ERR_PROC_FAILED
  if (class_of(code) == MPIX_ERR_PROC_FAILED) {
    throw Error(ErrorCode::peer_failed,
                "mpi: ",
                what,
                ": another rank ended (",
                text_of(code),
                "); the first rank that failed has the cause");
  }
#endif
  throw Error(ErrorCode::backend_failed, "mpi: ", what, ": ", text_of(code));
}

// The table ends with Type::other.
MPI_Datatype type_of(shm::Type type) {
  if (type == shm::Type::f16 || type == shm::Type::bf16)
    return MPI_FLOAT;
  const Named* named = types();
  while (named->type != shm::Type::other && named->type != type)
    ++named;
  return named->mpi;
}

Reductions::Reductions() {
  MPI_User_function* const functions[] = {combine<shm::Op::sum>,
                                          combine<shm::Op::sum>,
                                          combine<shm::Op::min>,
                                          combine<shm::Op::max>,
                                          combine<shm::Op::product>,
                                          combine<shm::Op::band>,
                                          combine<shm::Op::bor>,
                                          combine<shm::Op::bxor>};
  for (const size_t i : indices_below(8))
    check(MPI_Op_create(functions[i], 1, &ops_[i]), "MPI_Op_create");
}

MPI_Op Reductions::of(shm::Op op) const {
  return ops_[static_cast<size_t>(op)];
}

}  // namespace muster::mpi
