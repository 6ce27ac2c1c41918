// What muster_torch_headers (torch_headers.cmake) is made of: its precompiled header is all that
// counts.
