// A file of its own for each set of instructions: objects are named after their files, and are compiled side by side.
#include "network.cpp"
