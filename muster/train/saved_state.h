// The former address of muster/checkpoint/training/saved_state.h, for programs that include it.
#pragma once

#include "muster/checkpoint/training/saved_state.h"
