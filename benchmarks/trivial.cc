// A task that does nothing, whatever its arguments: linked statically, so that what is measured is the runner
// and the kernel rather than the loading of the C library.
int main() {}
