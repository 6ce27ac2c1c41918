// The former address of muster/checkpoint/training/checkpoints.h, for programs that include it.
#pragma once

#include "muster/checkpoint/training/checkpoints.h"
