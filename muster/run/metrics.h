// Where MetricsWriter was before muster/train was there.
#pragma once

#include "muster/train/metrics_writer.h"
