#include "guest.h"
void bridge_main(const char *d, int t) { (void)d; (void)t; _exit(1); }
