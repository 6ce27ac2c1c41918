"""Writes tables by Python's csv module into a folder, and prints the numbers that they hold."""
import csv
import random
import sys

random.seed(5)
LETTERS = ['a', ' ', '"', '""', ',', '\n', '\r\n', ';', "'", '1', 'é']


def text():
    return ''.join(random.choices(LETTERS, k=random.randint(0, 6)))


for number in range(20):
    name = f'table-{number}.csv'
    rows = [(text(), random.randint(-99, 99) / 4, text(), text(), random.randint(0, 1000)) for _ in range(30)]
    with open(f'{sys.argv[1]}/{name}', 'w', newline='') as file:
        quoting = csv.QUOTE_ALL if number % 2 else csv.QUOTE_MINIMAL
        writer = csv.writer(file, quoting=quoting, lineterminator='\n' if number % 3 else '\r\n')
        writer.writerow(['one "or" more\nlines', 'x', 'b', 'c', 'y'])
        writer.writerows(rows)
    print(name, len(rows))
    for row in rows:
        print(row[1], row[4])
