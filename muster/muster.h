// The one line a user needs: everything of muster that a training program uses.
#pragma once

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/comm/init.h"
#include "muster/comm/process_group.h"
#include "muster/data/dataset.h"
#include "muster/data/digits.h"
#include "muster/data/distributed_sampler.h"
#include "muster/data/loader.h"
#include "muster/data/mnist.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/run/context.h"
#include "muster/run/metrics.h"
#include "muster/run/progress.h"
#include "muster/run/run.h"
