"""`spmdc report`: a partitioned program as one page that opens anywhere.

facts.py     what is shown: lines with what they take, reshards with what else could have been
charts.py    what is drawn: the step, memory, the roofline, bars
flow.py      the dataflow, folded by line and function
page.py      all of that as HTML, by the templates beside it
"""
