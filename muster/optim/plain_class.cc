// A dynamic_cast would take a derived class for its base, so the classes are compared by their
// typeid.
#include "muster/optim/plain_class.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>

#include <typeinfo>

#include "muster/optim/optim.h"

namespace muster::optim {

namespace {

template <class... Classes>
bool is_type_of_one(const std::type_info& type) {
  return ((type == typeid(Classes)) || ...);
}

}  // namespace

bool is_plain(const Optimizer& optimizer) {
  return is_type_of_one<SGD,
                        Adam,
                        AdamW,
                        torch::optim::SGD,
                        torch::optim::Adam,
                        torch::optim::AdamW,
                        torch::optim::RMSprop,
                        torch::optim::Adagrad,
                        torch::optim::LBFGS>(typeid(optimizer));
}

}  // namespace muster::optim
