module rankfall.dev/testbed/programs

go 1.26
