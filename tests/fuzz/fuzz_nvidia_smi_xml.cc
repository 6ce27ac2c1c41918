#include "muster/device/readers/nvidia_smi_xml.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_nvidia_smi_xml(const std::string& text) {
  answer_or_error([&] {
    check_inventory(
        {.source = "fuzz", .simulated = true, .hosts = {nvidia_smi_xml_host(text, "fuzz")}});
  });
}

}  // namespace muster
