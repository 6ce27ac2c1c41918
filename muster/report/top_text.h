// A sample of `muster top` as text: the table for people, JSON, and Prometheus' text format. Pure.
#pragma once

#include <string>

#include "muster/report/top.h"

namespace muster {

// A line about the job, a line a rank with the columns that say anything, and what cannot be seen.
std::string top_table(const TopView& view);

// Schema "muster.top/1".
std::string top_json(const TopView& view);

// Gauges of each rank, with the labels run, rank, host and device, for node_exporter's textfile
// collector. Source: Prometheus, "Exposition formats", text format 0.0.4.
std::string top_prometheus(const TopView& view);

}  // namespace muster
